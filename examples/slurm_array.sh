#!/bin/sh
# Embed a corpus as an array of 100 jobs, which count from 0:
#
#     sbatch slurm_array.sh
#
# Run it again after a failure: a shard continues where it was, and one that is complete ends at once.
#SBATCH --array=0-99
#SBATCH --cpus-per-task=8
#SBATCH --mem=8G
#SBATCH --requeue
exec srun qdqbert run my-embedder-int8 -i s3://bucket/texts/ -o s3://bucket/vectors/ \
    --shard auto/100 --threads 8 --resume
