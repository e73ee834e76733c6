"""The data path: disposable child processes around Mooncake. The only folder that may import mooncake.

Parent side (asyncio): supervisor, child, ending, probe, capabilities. Child side (threads, no asyncio, no pydantic,
so that it starts fast and hangs alone): worker, write, registration. Both: settings, codes, window, frames.
"""
