"""Common cluster configuration errors, each with a remedy.

A trap takes the environment, the facts of this process and of every process, and returns a sentence or None.
"""

from collections.abc import Mapping, Sequence

from ._facts import Facts

# With fewer CPUs than this, the communication of a GPU waits for its process. The published guide recommends 8 per GPU.
CPUS_OF_A_GPU = 4


def trap_alone(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect a start without a launcher, or with an unsupported one."""
    if facts.num_processes > 1:
        return None
    inside_step = "SLURM_STEP_NODELIST" in environ
    if not inside_step and "SLURM_JOB_ID" in environ and _is_several(environ.get("SLURM_NTASKS")):
        return (
            f"The Slurm job has {environ['SLURM_NTASKS']} tasks, but this process was started without srun and is "
            "alone: put srun in front of python."
        )
    # Launchers that jztree does not support, and supported ones that still resulted in one process.
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE"):
        if _is_several(environ.get(name)):
            return (
                f"According to {name}, {environ[name]} processes were started, but each is process 0 of 1: in each, "
                "set "
                "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID, and unset variables that contradict "
                "them."
            )
    if "PMIX_RANK" in environ and "OMPI_COMM_WORLD_SIZE" not in environ and not inside_step:
        return (
            "An MPI launcher has started this process, but no variable has the number of processes: set "
            "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID in each process."
        )
    return None


def trap_host_name(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect a host without a resolvable name, or with an address that other hosts cannot reach."""
    if facts.address is None:
        return (
            f"The host cannot resolve its own name {facts.host}, so gloo, mpi4py or JAX may wait for it forever: "
            f'add a line "127.0.0.1 {facts.host}" to /etc/hosts (with its address in the network if there are several '
            "hosts)."
        )
    if len({process.host for process in everyone}) > 1 and (facts.address.startswith("127.") or facts.address == "::1"):
        return (
            f"The name {facts.host} resolves to {facts.address} on that host, which other hosts cannot reach: give the "
            "name its address in the network in /etc/hosts."
        )
    return None


def trap_proxy(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect a web proxy between the processes."""
    proxies = [name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environ.get(name)]
    if not proxies:
        return None
    exempt = [entry.strip() for entry in environ.get("no_proxy", "").split(",")]
    sentence = (
        f"{' and '.join(proxies)} would make gRPC, which connects JAX processes, use a proxy; "
        "jztree.launch.initialize() avoids this, but for jax.distributed.initialize() unset it or list the hosts in "
        "no_proxy."
    )
    wildcards = [entry for entry in exempt if "*" in entry]
    if wildcards:
        sentence += f" gRPC ignores wildcards such as {wildcards[0]} in no_proxy."
    return sentence


def trap_few_cpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect fewer CPUs than communication needs, or than the user requested."""
    requested = int(environ.get("SLURM_CPUS_PER_TASK") or 0)
    if requested > facts.num_cpus:
        return (
            f"--cpus-per-task is {requested} but a process may use {facts.num_cpus} of its host's {facts.host_cpus} "
            "CPUs: since Slurm 22.05, srun ignores the number of sbatch; put "
            "'export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK' before srun."
        )
    needed = CPUS_OF_A_GPU * facts.num_local_devices if facts.platform == "gpu" else 2
    if facts.num_cpus >= min(needed, facts.host_cpus):
        return None
    if "SLURM_JOB_ID" in environ:
        remedy = "request more with --cpus-per-task, and export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"
    elif "OMPI_COMM_WORLD_SIZE" in environ:
        remedy = "give mpirun the option --bind-to none, or --map-by slot:PE=8 for 8 CPUs each"
    else:
        remedy = "see taskset, or the options of your launcher for binding processes to CPUs"
    return (
        f"A process may use {facts.num_cpus} of its host's {facts.host_cpus} CPUs, but fast communication needs "
        f"at least {needed}: {remedy}."
    )


def trap_several_gpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect several GPUs in one process."""
    if facts.platform != "gpu" or facts.num_local_devices == 1:
        return None
    return (
        f"A process drives {facts.num_local_devices} GPUs, which works but is slower than one process per GPU: "
        f"start {facts.num_local_devices} tasks for each such process, with --ntasks-per-node equal to the number in "
        "--gres."
    )


def trap_shared_gpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect several processes on one GPU."""
    neighbours = sum(process.host == facts.host for process in everyone)
    if facts.platform != "gpu" or not 0 < facts.host_gpus < neighbours:
        return None
    return (
        f"{neighbours} processes on {facts.host} share {facts.host_gpus} GPUs, which NCCL refuses: start one process "
        "per GPU."
    )


def trap_idle_gpus(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect the use of a CPU on a host with GPUs."""
    selected = environ.get("JAX_PLATFORMS") or environ.get("JAX_PLATFORM_NAME") or ""
    if facts.platform != "cpu" or facts.host_gpus == 0 or selected.startswith("cpu"):
        return None
    return (
        f"JAX runs on the CPU of a host with {facts.host_gpus} GPUs: install jax[cuda12] or jax[cuda13], and check "
        "that CUDA_VISIBLE_DEVICES lists GPUs."
    )


def trap_unequal(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> str | None:
    """Detect processes with different devices, or with different versions of packages."""
    if len({process.num_local_devices for process in everyone}) > 1:
        numbers = ", ".join(str(process.num_local_devices) for process in everyone)
        return f"Processes have different numbers of devices ({numbers}): give each the same --gres and the same tasks."
    if len({process.versions for process in everyone}) > 1:
        differing = next(process for process in everyone if process.versions != everyone[0].versions)
        differ = ", ".join(sorted(set(differing.versions) ^ set(everyone[0].versions)))
        return (
            f"Processes on {everyone[0].host} and {differing.host} run different versions ({differ}): use the same "
            "versions in every process."
        )
    return None


TRAPS = (
    trap_alone,
    trap_host_name,
    trap_proxy,
    trap_few_cpus,
    trap_several_gpus,
    trap_shared_gpus,
    trap_idle_gpus,
    trap_unequal,
)


def traps(environ: Mapping[str, str], facts: Facts, everyone: Sequence[Facts]) -> list[str]:
    """Return the sentences of the traps that apply to this process."""
    result = (trap(environ, facts, everyone) for trap in TRAPS)
    return [sentence for sentence in result if sentence is not None]


def _is_several(number: str | None) -> bool:
    """Return whether the value of a variable is a number above 1."""
    return number is not None and number.isdecimal() and int(number) > 1


def describe_traps(sentences_of_all: Sequence[Sequence[str]]) -> str:
    """List each sentence once, with the affected processes unless it affects every process."""
    lines = []
    for sentence in dict.fromkeys(sentence for sentences in sentences_of_all for sentence in sentences):
        those = [str(process) for process, sentences in enumerate(sentences_of_all) if sentence in sentences]
        some = f" (process {', '.join(those[:8])}{', ...' if len(those) > 8 else ''})"
        lines.append(f"! {sentence}{'' if len(those) == len(sentences_of_all) else some}")
    return "\n".join(lines)
