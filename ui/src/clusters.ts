// What is said of a cluster: why it may import as many images as it may, and what a quarantine would do.
import type { MemberDetail, MemberQuarantineDetail, MemberState, MemberStates, PlanVersion, WhyBudget } from './api'
import { shellWord } from './shellword'
import { formatClock, formatCount, formatNumber } from './format'

/** One link of the chain that leads to how many imports may run. */
export interface Link {
  term: string
  /** How many imports this link allows; absent where it limits nothing, or is unknown. */
  value?: number
  note: string
  /** The link that the number of imports comes from. */
  limits: boolean
}

/** Why a cluster gets no grant at all; empty if it does. */
export type CutOff = '' | 'silent' | 'quarantined'

/** Returns the chain: what the policy plans, what the cluster's own ConfigMap leaves, what its ledger works under, and what it is granted of the fleet's budget. */
export function explainChain(chain: WhyBudget, plan?: PlanVersion, acknowledged?: PlanVersion, cutOff: CutOff = ''): Link[] {
  const links: Link[] = [
    chain.policyConcurrency === undefined
      ? { term: 'Policy', note: 'no policy is in force for it', limits: false }
      : { term: 'Policy', value: chain.policyConcurrency, note: chain.policySource ?? '', limits: false },
    chain.ownConcurrency === undefined
      ? { term: 'Its own ConfigMap', note: 'sets no limit', limits: false }
      : { term: 'Its own ConfigMap', value: chain.ownConcurrency, note: 'the smaller of the two holds', limits: false },
    { term: 'Plan in its ledger', value: chain.budget, note: describePlan(chain, plan, acknowledged), limits: false },
  ]
  if (chain.transfers) links.push({ term: 'Grant', value: chain.transfers.granted, note: describeGrant(chain, cutOff), limits: false })
  // A grant of all that is wanted limits nothing; a cluster that is cut off gets none, whatever it wants.
  const limited = links.filter((l) => l.term !== 'Grant' || cutOff !== '' || chain.transfers!.wanted > chain.transfers!.granted)
  const least = Math.min(...limited.map((l) => l.value ?? Infinity))
  const limiting = limited.find((l) => l.value === least)
  if (limiting) limiting.limits = true
  return links
}

function describePlan(chain: WhyBudget, plan?: PlanVersion, acknowledged?: PlanVersion): string {
  if (chain.budget === undefined) return 'the cluster has not said yet'
  if (chain.acknowledged) return 'it works under the newest plan'
  if (plan && acknowledged) return `it still works under plan ${formatPlan(acknowledged)}; the newest is ${formatPlan(plan)}`
  return 'it has not acknowledged the newest plan'
}

export function formatPlan(plan: PlanVersion): string {
  return plan.epoch > 1 ? `${plan.epoch}.${plan.sequence}` : String(plan.sequence)
}

function describeGrant(chain: WhyBudget, cutOff: CutOff): string {
  const transfers = chain.transfers!
  const said = [chain.fleetConcurrency === undefined ? undefined : `of ${formatNumber(chain.fleetConcurrency)} in the fleet`]
  if (cutOff !== '') said.push(cutOff === 'silent' ? 'none to a silent cluster' : 'none in quarantine')
  else said.push(transfers.wanted > transfers.granted ? `it wants ${formatNumber(transfers.wanted)}` : 'as many as it wants')
  if (transfers.held > transfers.granted) said.push(`${formatCount(transfers.held, 'slot is', 'slots are')} held for it`)
  if (transfers.heldUntil) said.push(`reserved until ${formatClock(transfers.heldUntil)}${cutOff === '' ? ' if it falls silent' : ''}`)
  return said.filter((s) => s !== undefined).join('; ')
}

/** Says the chain in one sentence, such as: 1 of 1 slot taken: 4 by the policy, 2 by its own ConfigMap, 1 granted. */
export function describeChain(chain: WhyBudget): string {
  const said: string[] = []
  if (chain.policyConcurrency !== undefined) said.push(`${chain.policyConcurrency} by the policy`)
  if (chain.ownConcurrency !== undefined) said.push(`${chain.ownConcurrency} by its own ConfigMap`)
  if (chain.transfers) said.push(`${chain.transfers.granted} granted`)
  const slots = chain.slots === undefined || chain.budget === undefined ? 'How many slots are taken is unknown' : `${chain.slots} of ${formatCount(chain.budget, 'slot')} taken`
  return said.length > 0 ? `${slots}: ${said.join(', ')}.` : `${slots}.`
}

/** The states to filter by, those that need somebody first. */
const states: { state: MemberState; count: (s: MemberStates) => number; label: string }[] = [
  { state: 'Stalled', count: (s) => s.stalled, label: 'stalled' },
  { state: 'Silent', count: (s) => s.silent, label: 'silent' },
  { state: 'Failing', count: (s) => s.failing, label: 'failing' },
  { state: 'NeverReported', count: (s) => s.neverReported, label: 'never reported' },
  { state: 'NotReady', count: (s) => s.notReady, label: 'not ready' },
  { state: 'Quarantined', count: (s) => s.quarantined, label: 'in quarantine' },
  { state: 'Ready', count: (s) => s.ready, label: 'ready' },
]

/** Returns the states that clusters are in, with how many. One that is asked for stays, also with none. */
export function countStates(counts: MemberStates, asked: string): { state: MemberState; n: number; label: string }[] {
  return states.map(({ state, count, label }) => ({ state, n: count(counts), label })).filter((s) => s.n > 0 || s.state === asked)
}

/** Returns the command that lists the same clusters, in whatever order; undefined where none does, since one that lists others would mislead. */
export function listCommand(filter: { search: string; state: string; selector: string }): string | undefined {
  if (filter.search !== '' || !['', 'Failing', 'unknown'].includes(filter.state)) return undefined
  const words = ['kubectl ot get clusters']
  if (filter.selector) words.push('-l', shellWord(filter.selector))
  if (filter.state === 'Failing') words.push('--failing')
  if (filter.state === 'unknown') words.push('--unknown')
  return words.join(' ')
}

/** The labels of a cluster that people have given it. */
export function ownLabels(labels: Record<string, string> | undefined): [string, string][] {
  return Object.entries(labels ?? {}).filter(([key]) => !key.startsWith('kubernetes.io/') && !key.startsWith('app.kubernetes.io/'))
}

/** Returns why a quarantine cannot be written for a reason; nothing if it can. The hub's own limits. */
export function refuseReason(reason: string): string | undefined {
  const text = reason.trim()
  if (text === '') return 'Say why, for whoever finds the cluster cut off.'
  if ([...text].length > 256) return `The reason has ${[...text].length} characters: at most 256.`
  if (/[\u0000-\u001f\u007f]/.test(text)) return 'The reason is one line of text.'
  return undefined
}

/** Reports whether what a dialog showed still holds for the object as it is now. */
export function isSameQuarantine(shown: MemberQuarantineDetail, stored: MemberQuarantineDetail): boolean {
  const decision = (q: MemberQuarantineDetail): string => JSON.stringify([q.quarantined, q.reason, q.begin, q.end])
  return decision(shown) === decision(stored)
}

/** Counts of images as a cluster reported them, those that need somebody first. */
export function imageCounts(detail: MemberDetail): { label: string; n: number; tone: 'bad' | 'moving' | 'waiting' | 'good' | 'quiet' }[] {
  const counts = detail.imageCounts
  if (!counts) return []
  return (
    [
      { label: 'failed', n: counts.failed, tone: 'bad' },
      { label: 'importing', n: counts.syncing, tone: 'moving' },
      { label: 'queued', n: counts.queued, tone: 'waiting' },
      { label: 'leaving', n: counts.leaving, tone: 'quiet' },
      { label: 'ready', n: counts.ready, tone: 'good' },
    ] as const
  ).filter((c) => c.n > 0)
}
