import type { Rollout } from '../../api'
import { Sign, type Tone } from '../../components/sign'
import { Clock } from '../../components/time'
import { plainText } from '../../format'

/** RolloutSign is the phase of a rollout with its reason, as kubectl ot rollout status says it. */
export function RolloutSign({ rollout: r }: { rollout: Rollout }) {
  if (!r.observed || !r.phase) return <Sign tone="unknown">not reconciled yet</Sign>
  return <Sign tone={toneOfRollout(r)}>{r.phase === 'Succeeded' || !r.reason ? r.phase : `${r.phase}, ${r.reason}`}</Sign>
}

/** The tone of a rollout: that some clusters have failed, as many as may, does not stop it. */
export function toneOfRollout(r: Rollout): Tone {
  if (!r.observed || !r.phase) return 'unknown'
  if (r.phase === 'Failed' || r.reason === 'MaxFailures') return 'bad'
  if (r.phase === 'Succeeded') return 'good'
  const failed = (r.clusters.failed ?? 0) + (r.clusters.timedOut ?? 0)
  if (r.attention && (r.phase !== 'Progressing' || failed === 0)) return 'attention'
  return r.phase === 'Progressing' ? 'moving' : 'waiting'
}

/** Expected is when a rollout will be done, or why that cannot be said. */
export function Expected({ rollout: r }: { rollout: Rollout }) {
  if (!r.observed) return <span class="muted">unknown</span>
  if (r.expectedAt) return <Clock at={r.expectedAt} />
  if (r.expectedReason) return <span class="muted">{reasonText(r.expectedReason)}</span>
  return <span class="muted">–</span>
}

const reasonTexts: Record<string, string> = {
  AwaitingApproval: 'after an approval',
  Paused: 'paused',
  MaxFailures: 'too many have failed',
  ClustersBlocked: 'clusters wait for a person',
  OfflineClusters: 'clusters are offline',
  TooFewSamples: 'no estimate: fewer than 3 samples',
  NotReported: 'no estimate: not reported',
  NothingGranted: 'the budget grants no slot, now or when the last would begin',
  PlanFull: 'a plan is full',
  FieldsUnknown: 'an agent is too old',
  LabelMissing: 'a cluster lacks a label',
  SourceInvalid: 'an override makes no valid image',
  WaitingForWindow: 'when a window opens',
  ArchitectureMismatch: 'an image is of another architecture',
}

function reasonText(reason: string): string {
  return reasonTexts[reason] ?? plainText(reason, 64)
}
