"""Everything invasive the agent does to torch, in one place.

    backward        autograd.backward, autograd.grad                    loss, end of the forward region, double backward
    optimizer       Optimizer.__init__ and the global step hooks        iteration boundary, skipped steps, lr factor
    modules         nn.Module.__call__, autocast.__enter__              entry modules; only until warm-up is over
    job_compile     torch.compile, GradScaler.__init__, .scale, .step   what the job already does itself
    scripting       torch.jit.script                                    does not see the agent's objects in modules
    loader          DataLoader.__init__, ._get_iterator, fetchers       which loaders exist, and iterators that can be switched
    job_cuda_graphs CUDAGraph.capture_begin, .capture_end               nothing is timed or copied while a graph is captured
    ddp             DistributedDataParallel.__init__, Join.__enter__    arguments from the job, uneven inputs
    job_settings    torch.set_num_threads, set_float32_matmul_precision what the job sets itself
    scheduler       LRScheduler.step                                    frozen in live sessions
    seeds           manual_seed, random.seed, numpy.random.seed         seeded runs only
    transfer        Tensor.to, Tensor.cuda                              CUDA only: copy time, non_blocking, copies made ahead
    tracing         dynamo's list of folders to skip                    the agent's own frames are not compiled
    process         sys.excepthook, forked children                     the error a rank dies of; a child's session is its own
    safetensors     safetensors.torch.save, .save_file                  weights in channels_last, which it refuses
    saving          torch.save, TorchScript, safetensors                recorded before they write; the only ones that stay

Stopping the agent undoes all patches but `saving` (tests/agent/test_agent_stops.py). Each is small,
named, reversible and idempotent, calls the original, and steps aside when its own code fails.
"""
