-- Everything Cascade knows of traces and runs: a fold of the event log, insert-only, rebuilt from it when lost.
-- Times are integer nanoseconds (_ns), ratios integer parts per million (_ppm). Views at the end are made for people.

create table if not exists positions (
    topic text not null, kafka_partition integer not null, next_offset bigint not null,
    primary key (topic, kafka_partition)
);

create table if not exists trace_starts (
    trace_id text primary key, name text, provenance text, tool text, source_gpu text, gpu_name text,
    model_name text, engine text, engine_version text, rank_count integer, world_size integer, started_at text,
    prompts text, event text
);
create table if not exists trace_ends (
    trace_id text primary key, status text, is_truncated boolean, launch_count bigint, kernel_count bigint,
    signature_count bigint, task_count bigint, step_count bigint, launchless_count bigint, quality text, reason text,
    name text, event text
);
create table if not exists host_profiles (trace_id text primary key, event text);
create table if not exists artifacts (
    trace_id text, digest text, name text, size_bytes bigint, kind text, primary key (trace_id, digest)
);
create table if not exists signatures (
    trace_id text, signature_id text, name text, grid_x bigint, grid_y bigint, grid_z bigint,
    block_x bigint, block_y bigint, block_z bigint, registers integer, shared_memory_bytes bigint,
    primary key (trace_id, signature_id)
);
create table if not exists tasks (
    trace_id text, task_id text, signature_id text, name text, op text, operands_from text,
    tokens bigint, task text, primary key (trace_id, task_id)
);
create table if not exists launches (  -- identity (trace_id, rank, seq); the writer lets each in once
    trace_id text, rank integer, seq bigint, task_id text, start_ns bigint, duration_ns bigint, stream integer,
    step integer, graph bigint, host_launch_ns bigint, is_kernel boolean
);
create table if not exists trace_steps (
    trace_id text, rank integer, step integer, phase text, start_ns bigint, duration_ns bigint,
    context_requests integer, context_tokens bigint, generation_requests integer, generation_tokens bigint,
    kernel_count bigint, q_lengths text, kv_lengths text, request_indexes text,
    primary key (trace_id, rank, step)
);

create table if not exists run_requests (
    run_id text primary key, trace_id text, name text, simulator text, event text
);
create table if not exists run_cancellations (run_id text primary key);
create table if not exists run_configs (
    run_id text, config_id text, ordinal integer, label text, gpu text, gpu_name text, replicas integer,
    is_requested boolean, spec text, primary key (run_id, config_id)
);
create table if not exists simulator_starts (
    run_id text, config_id text, simulator text, simulator_version text, calibration_digest text,
    primary key (run_id, config_id)
);
create table if not exists simulator_versions (  -- of all simulators of a config, where kernels were simulated again
    run_id text, config_id text, simulator text, simulator_version text, calibration_digest text,
    primary key (run_id, config_id, simulator)
);
create table if not exists simulated_kernels (  -- forward predictions: what the simulator said
    run_id text, config_id text, task_id text, duration_ns bigint, p10_ns bigint, p90_ns bigint, sigma_ppm bigint,
    family text, tier text, reason text, bound text, tensor_ns bigint, dram_ns bigint, l2_ns bigint, issue_ns bigint,
    launch_ns bigint, sm_cycles bigint, is_cached boolean, roofline_ns bigint,
    primary key (run_id, config_id, task_id)
);
create table if not exists refinements (  -- which kernels of a config are simulated again, and why
    run_id text, config_id text, simulator text, task_count bigint, sentence text, event text,
    primary key (run_id, config_id)
);
create table if not exists refined_kernels (  -- what the refining simulator said, beside what the run's own did
    run_id text, config_id text, simulator text, task_id text, duration_ns bigint, p10_ns bigint, p90_ns bigint,
    sigma_ppm bigint, family text, tier text, reason text, bound text, tensor_ns bigint, dram_ns bigint, l2_ns bigint,
    issue_ns bigint, launch_ns bigint, sm_cycles bigint, is_cached boolean, roofline_ns bigint, statistics text,
    primary key (run_id, config_id, task_id)
);
create table if not exists predicted_kernels (  -- with the source correction: what Cascade says
    run_id text, config_id text, task_id text, launch_count bigint, duration_ns bigint, p10_ns bigint, p90_ns bigint,
    correction_ppm bigint, measured_ns bigint, error_ppm bigint,
    primary key (run_id, config_id, task_id)
);
create table if not exists predicted_steps (
    run_id text, config_id text, step integer, phase text, gpu_ns bigint, duration_ns bigint, p10_ns bigint,
    p90_ns bigint, measured_gpu_ns bigint, coverage_ppm bigint, launch_count bigint,
    primary key (run_id, config_id, step)
);
create table if not exists assumptions (
    run_id text, config_id text, assumption text, primary key (run_id, config_id, assumption)
);
create table if not exists predicted_requests (
    run_id text, config_id text, request integer, prompt_tokens bigint,
    ttft_ns bigint, ttft_p10_ns bigint, ttft_p90_ns bigint, ttft_reason text,
    tpot_ns bigint, tpot_p10_ns bigint, tpot_p90_ns bigint, tpot_reason text, infeasible text,
    primary key (run_id, config_id, request)
);
create table if not exists accuracy (
    run_id text, config_id text, kernel_count bigint, median_ape_ppm bigint, mape_ppm bigint,
    weighted_error_ppm bigint, total_error_ppm bigint, roofline_mape_ppm bigint, coverage_ppm bigint, reason text,
    primary key (run_id, config_id)
);
create table if not exists run_ends (
    run_id text primary key, outcome text, failed_count bigint, state_hash text, reason text
);

-- Columns that came later, for stores made before them.
alter table trace_steps add column if not exists is_profiled boolean default true;
alter table accuracy add column if not exists measured_ttft_ns bigint;
alter table accuracy add column if not exists measured_tpot_ns bigint;
alter table accuracy add column if not exists ttft_error_ppm bigint;
alter table accuracy add column if not exists tpot_error_ppm bigint;
alter table simulated_kernels add column if not exists statistics text;
alter table predicted_kernels add column if not exists refined_by text;
alter table predicted_kernels add column if not exists refinement text;
alter table predicted_kernels add column if not exists refined boolean;  -- true in a second answer, else null
alter table predicted_steps add column if not exists refined boolean;
alter table predicted_requests add column if not exists refined boolean;
alter table accuracy add column if not exists refined boolean;

create or replace view traces as
    select coalesce(s.trace_id, e.trace_id) as trace_id, coalesce(s.name, e.name) as name,
        coalesce(e.status, 'importing') as status, s.provenance, s.tool, s.source_gpu, s.model_name, s.engine,
        s.engine_version, s.rank_count, s.world_size, e.launch_count, e.kernel_count, e.signature_count, e.task_count,
        e.step_count, e.launchless_count, e.is_truncated, e.reason, s.started_at, e.quality
    from trace_starts s full join trace_ends e using (trace_id);

create or replace view runs as
    select r.run_id, r.trace_id, r.name, r.simulator,
        coalesce(e.outcome, case when c.run_id is not null then 'cancelled' else 'running' end) as status,
        e.failed_count, e.state_hash, e.reason, t.name as trace_name, t.provenance, t.source_gpu, t.model_name
    from run_requests r left join run_ends e using (run_id) left join run_cancellations c using (run_id)
        left join traces t using (trace_id);

create or replace view simulations as
    select s.*, r.simulator, p.refined_by is null as stands
        from simulated_kernels s join run_requests r using (run_id) left join predicted_kernels p
            on p.run_id = s.run_id and p.config_id = s.config_id and p.task_id = s.task_id
    union all by name
    select s.*, p.refined_by is not null as stands
        from refined_kernels s left join predicted_kernels p
            on p.run_id = s.run_id and p.config_id = s.config_id and p.task_id = s.task_id;

create or replace view kernels as
    select s.run_id, s.config_id, c.gpu, c.label, s.task_id, k.name, k.op, s.family, s.bound, s.tier, s.reason,
        k.operands_from, p.launch_count, p.duration_ns, p.p10_ns, p.p90_ns, p.correction_ppm,
        s.duration_ns as forward_ns, s.roofline_ns, p.measured_ns, p.error_ppm,
        s.tensor_ns, s.dram_ns, s.l2_ns, s.issue_ns, s.launch_ns, c.is_requested, r.provenance,
        s.simulator, p.refinement
    from simulations s
        join run_configs c using (run_id, config_id)
        join runs r using (run_id)
        left join tasks k on k.trace_id = r.trace_id and k.task_id = s.task_id
        left join predicted_kernels p on p.run_id = s.run_id and p.config_id = s.config_id and p.task_id = s.task_id
    where s.stands;

create or replace view families as
    select run_id, config_id, gpu, label, family, count(*) as task_count,
        sum(launch_count)::bigint as launch_count, sum(duration_ns * launch_count)::bigint as duration_ns,
        sum(measured_ns * launch_count)::bigint as measured_ns, sum(roofline_ns * launch_count)::bigint as roofline_ns
    from kernels group by all;

create or replace view steps as
    select p.run_id, p.config_id, c.gpu, c.label, p.step, p.phase, p.gpu_ns, p.duration_ns, p.p10_ns, p.p90_ns,
        p.measured_gpu_ns, p.coverage_ppm, p.launch_count, t.context_requests, t.context_tokens,
        t.generation_requests, t.generation_tokens, c.is_requested, r.provenance
    from predicted_steps p
        join run_configs c using (run_id, config_id)
        join runs r using (run_id)
        left join (select * from trace_steps qualify row_number() over (partition by trace_id, step order by rank) = 1) t
            on t.trace_id = r.trace_id and t.step = p.step;

create or replace view configs as
    select c.run_id, c.config_id, c.ordinal, c.label, c.gpu, c.gpu_name, c.is_requested, c.replicas, r.provenance,
        r.source_gpu, k.kernel_ns, q.request, q.prompt_tokens, q.ttft_ns, q.ttft_p10_ns, q.ttft_p90_ns, q.ttft_reason,
        q.tpot_ns, q.tpot_p10_ns, q.tpot_p90_ns, q.tpot_reason, q.infeasible, a.coverage_ppm, a.median_ape_ppm,
        a.mape_ppm, a.weighted_error_ppm, a.total_error_ppm, a.roofline_mape_ppm, a.kernel_count,
        a.reason as error_reason, a.measured_ttft_ns, a.measured_tpot_ns, a.ttft_error_ppm, a.tpot_error_ppm
    from run_configs c
        join runs r using (run_id)
        left join (select run_id, config_id, sum(duration_ns * launch_count)::bigint as kernel_ns
                   from predicted_kernels group by all) k using (run_id, config_id)
        left join predicted_requests q using (run_id, config_id)
        left join accuracy a using (run_id, config_id);
