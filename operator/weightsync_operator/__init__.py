"""The operator: sees pods and WeightSyncs, decides the plan, writes slices and status. Nothing else writes those."""
