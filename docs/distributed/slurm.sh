#!/bin/bash
# Two nodes, four processes on each: sbatch slurm.sh
#SBATCH --job-name=ppg
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
# With GPUs: #SBATCH --gpus-per-node=4

# Slurm sends SIGTERM two minutes before the time is up, and when it takes the nodes back. torchrun passes it on and waits for
# 100 seconds, in which the run finishes its iteration and saves a checkpoint. Slurm does not requeue a job whose time is up
PROCESSES=4
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / PROCESSES))
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$PROCESSES" --max-restarts 3 --shutdown-timeout 100 \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$FIRST_NODE:29500" \
    -m sb3_ppg train --env Pendulum-v1 -n 1000000 --run-folder "$HOME/logs/ppg/Pendulum-v1_1" &
wait $!
STATUS=$?
# A run that has begun goes on; a command that fails at once has saved no checkpoint
if [ "$STATUS" -ne 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ] &&
    compgen -G "$HOME/logs/ppg/Pendulum-v1_1/rl_model_*" > /dev/null; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$STATUS"
