// The steps from an empty hub to a machine image that a cluster has.
import type { Summary } from './api'
import { formatCount } from './format'
import { publishFirstCommand } from './listcommands'

export interface Step {
  title: string
  text: string
  doneText: string
  commands: string[]
  done: boolean
  /** The first that is not done. */
  next: boolean
}

/** How many images of the fleet machines can use. */
export function readyImages(s: Summary): number {
  return s.images.phases?.Succeeded ?? 0
}

export function firstSteps(s: Summary): Step[] {
  const reported = s.members.total - s.members.neverReported
  const steps: Omit<Step, 'next'>[] = [
    {
      title: 'A cluster joins',
      text: 'Push: the hub reaches the API server of the cluster. Pull: the cluster reaches the hub, and needs no way in. NAME is the name of the cluster in the fleet, CONTEXT its context in your kubeconfig.',
      doneText: `${formatCount(s.members.total, 'cluster')} joined.`,
      commands: ['kubectl ot join push NAME --member CONTEXT', 'kubectl ot join pull NAME --member CONTEXT'],
      done: s.members.total > 0,
    },
    {
      title: 'It reports',
      text: 'Its agent starts and reports within a minute. If it does not, doctor says why.',
      doneText: `${formatCount(reported, 'cluster reports', 'clusters report')}.`,
      commands: ['kubectl ot doctor --member-context CONTEXT'],
      done: reported > 0,
    },
    {
      title: 'A version is published',
      text: 'A FleetDiskImage says which disk image the clusters get, and in which order.',
      doneText: `${formatCount(s.rollouts.total, 'FleetDiskImage')} on the hub.`,
      commands: [publishFirstCommand],
      done: s.rollouts.total > 0 || s.images.images > 0,
    },
    {
      title: 'A cluster has its first image',
      text: 'It is imported, and machines can be cloned from it then.',
      doneText: `${formatCount(readyImages(s), 'image is', 'images are')} ready.`,
      commands: ['kubectl ot top imports'],
      done: readyImages(s) > 0,
    },
  ]
  const next = steps.findIndex((step) => !step.done)
  return steps.map((step, i) => ({ ...step, next: i === next }))
}
