"""The data path: disposable child processes around Mooncake. The only folder that may import mooncake.

Parent side (asyncio): supervisor, probe, capabilities. Child side (threads, no asyncio, no pydantic, so that it
starts fast and hangs alone): worker, write, registration, digesting. Both: settings, codes, window, frames.
"""
