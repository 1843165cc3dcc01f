// What of the fleet needs a person: which sentence, where to look, and which command.
import type { Attention, NamedRollout, Summary } from './api'
import type { Tone } from './components/sign'
import { withoutCommand } from './lanes'
import { shellWord } from './shellword'
import { whyOf } from './whyaddress'

export interface Task {
  key: string
  tone: Tone
  /** The object that it is about. */
  subject: string
  text: string
  /** Since when. */
  since?: string
  link: string
  href: string
  command: string
}

/** Returns what needs a person, in the order of what waits for one, what failed, and what is silent; and how many more there are than the hub names. */
export function tasksOf(s: Summary): { tasks: Task[]; unnamed: number } {
  const tasks = [
    ...(s.attention.items ?? []).map((a) => taskOf(a, s.rollouts.named ?? [])),
    ...(s.failing.named ?? []).map((f): Task => ({
      key: `failed/${f.member}/${f.namespace}/${f.name}`,
      tone: 'bad',
      subject: f.member,
      text: `${f.namespace}/${f.name}: ${[f.reason, f.message].filter(Boolean).join(', ')}`,
      link: 'Why',
      href: '/?why=' + encodeURIComponent(whyOf(f.member, f.namespace, f.name)),
      command: `kubectl ot why image ${shellWord(f.name)} -n ${shellWord(f.namespace)} --cluster ${shellWord(f.member)}`,
    })),
  ]
  const quiet = (s.members.named ?? []).filter((m) => m.state === 'Silent' || m.state === 'NeverReported')
  for (const m of quiet) {
    tasks.push({
      key: `member/${m.member}`,
      tone: 'unknown',
      subject: m.member,
      text: (m.state === 'Silent' ? 'is silent' : 'has never reported') + (m.message ? `: ${m.message}` : ''),
      since: m.state === 'Silent' ? m.since : undefined,
      link: 'Cluster',
      href: `/clusters/${encodeURIComponent(m.member)}`,
      command: `kubectl ot why cluster ${shellWord(m.member)}`,
    })
  }
  const unnamed = s.attention.total - (s.attention.items?.length ?? 0) + s.failing.images - (s.failing.named?.length ?? 0) + s.members.silent + s.members.neverReported - quiet.length
  return { tasks, unnamed: Math.max(0, unnamed) }
}

function taskOf(a: Attention, rollouts: readonly NamedRollout[]): Task {
  const name = shellWord(a.name)
  const task = { key: `${a.kind}/${a.name}`, tone: 'attention' as Tone, subject: a.name, text: withoutCommand(a.message ?? '') || a.reason }
  switch (a.kind) {
    case 'FleetDiskImage': {
      const rollout = rollouts.find((r) => r.name === a.name)
      const wave = rollout?.currentWave
      let command = `kubectl ot why rollout ${name}`
      if (a.reason === 'AwaitingApproval' && wave) command = `kubectl ot rollout approve ${name} --wave ${shellWord(wave)} --version ${shellWord(rollout.version)}`
      if (a.reason === 'Paused') command = `kubectl ot rollout resume ${name}`
      return { ...task, link: 'Review', href: `/rollouts/${encodeURIComponent(a.name)}`, command }
    }
    case 'MemberCluster':
      return { ...task, tone: 'bad', link: 'Cluster', href: `/clusters/${encodeURIComponent(a.name)}`, command: `kubectl ot why cluster ${name}` }
    case 'PruneReport':
      return { ...task, link: 'Clean up', href: `/cleanup/${encodeURIComponent(a.name)}`, command: `kubectl ot prune review ${name}` }
    case 'ImagePrune':
      return { ...task, link: 'Clean up', href: '/cleanup', command: `kubectl ot prune status ${name}` }
    default:
      return { ...task, subject: a.kind === 'ConfigMap' ? "The fleet's policy" : `${a.kind} ${a.name}`, tone: 'bad', link: 'Policy', href: '/policy', command: 'kubectl ot policy show' }
  }
}
