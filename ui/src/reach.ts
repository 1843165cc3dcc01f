// What an approval reaches, in words.
import type { ReachDownload, ReachSource, RolloutReach } from './api'
import { formatBytes, formatCount, plainText } from './format'

/** How many sources the hub describes. */
export const maxReachSources = 20

/** What clusters download by host; none of a hub of an older version, behind the dashboard of kubectl ot. */
export function downloadsOf(r: Partial<Pick<RolloutReach, 'downloads'>>): ReachDownload[] {
  return r.downloads ?? []
}

/** Says what is downloaded in all, and by each where that is the same. */
export function downloadText(r: Partial<RolloutReach> & Pick<RolloutReach, 'eachBytes' | 'clusters'>): string {
  if (!r.downloads || r.bytes === undefined) {
    const most = r.atMost ? 'at most ' : ''
    return `${most}${formatBytes(r.eachBytes * r.clusters)}, ${most}${formatBytes(r.eachBytes)} each`
  }
  const clusters = r.downloads.reduce((sum, d) => sum + d.clusters, 0)
  if (clusters === 0) return 'nothing'
  const most = r.atMostBytes ? 'at most ' : ''
  const each = r.bytes === r.eachBytes * clusters ? `, ${most}${formatBytes(r.eachBytes)} each` : ''
  return `${most}${formatBytes(r.bytes)} in ${formatCount(clusters, 'cluster')}${each}`
}

/** Says what some clusters are to have, and which overrides that is from. */
export function sourceText(s: ReachSource): string {
  if (!s.source) return `source ${s.digest}, which no cluster has by its labels now`
  return `${formatCount(s.clusters, 'cluster')}: ${plainText(s.source, 300)}, from ${s.from?.length ? s.from.join(' and ') : 'the template'}`
}
