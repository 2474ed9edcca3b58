/** Sentences that more than one place says. */

export type Provenance = 'measured' | 'recorded-on-cpu' | 'synthesized'

export const PROVENANCE: Readonly<Record<Provenance, { readonly word: string; readonly meaning: string }>> = {
  measured: { word: 'measured', meaning: 'recorded on a real GPU' },
  'recorded-on-cpu': {
    word: 'recorded on CPU',
    meaning: 'real engine steps and shapes, recorded without a GPU; the kernels are derived and no time was measured',
  },
  synthesized: {
    word: 'synthesized',
    meaning: "no engine ran; steps and kernels are made from the model's architecture",
  },
}

export function provenanceOf(text: string | null | undefined): Provenance | null {
  return text === 'measured' || text === 'recorded-on-cpu' || text === 'synthesized' ? text : null
}

const ASSUMPTIONS: Readonly<Record<string, string>> = {
  host_not_measured:
    'No unprofiled host baseline: a step is GPU time plus default launch gaps; its p10 is GPU time alone.',
  host_issue_assumed_in_p90: "The p90 of a step is at least a Python host's launch rate for eager launches.",
  host_time_of_source_machine:
    'Host time was measured without a profiler on the machine that was traced, and is taken to be the same beside every GPU.',
  profiled_steps_stand_for_all: 'Only some steps were profiled while tracing; they stand for all.',
  experts_routed_evenly: 'Tokens are spread evenly over experts; say otherwise when the trace is imported.',
  experts_routed_as_told: 'Tokens are spread over experts as the importer of the trace, or the trace itself, says.',
  missing_ranks_assumed_equal: 'Ranks missing from the trace are assumed equal to those present.',
}

export const assumptionSentence = (name: string): string => ASSUMPTIONS[name] ?? name

export const DEFINITION =
  'TTFT and TPOT count from the start of the request’s first step: no queueing, no network. Intervals hold in 8 of 10 cases.'

export const STATUS: Readonly<Record<string, string>> = {
  running: 'running',
  completed: 'complete',
  completed_with_failures: 'complete, with failures',
  failed: 'failed',
  cancelled: 'cancelled',
  importing: 'importing',
  complete: 'complete',
  rejected: 'rejected',
}
