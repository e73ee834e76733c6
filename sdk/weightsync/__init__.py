"""WeightSync: peer-to-peer weight synchronisation from trainers to rollout engines. No torch, no Kubernetes here."""
