// One source in all clusters.
import type { ImageDetail, ImageEntry, ImageInMember } from '../../api'
import { Command } from '../../components/command'
import { Figure, Figures, Page, Panel } from '../../components/panel'
import { Sign, toneOf } from '../../components/sign'
import { Shown } from '../../components/states'
import { Table, type Column } from '../../components/table'
import { Age } from '../../components/time'
import { formatBytes, formatCount, formatNumber, plainText } from '../../format'
import { useAnswer } from '../../query'
import { href, hrefWith } from '../../route'
import { shellWord } from '../../shellword'
import { whyOf } from '../../why'

/** The address of a source. */
export function sourceHref(source: string): string {
  return '/images?source=' + encodeURIComponent(source)
}

export function SourcePage({ source }: { source: string }) {
  const answer = useAnswer<ImageDetail>('images/detail', { source, limit: mostRows }, ['images'])
  return (
    <Page title="Image" aside={<a href="/images?of=sources">All sources</a>}>
      <p class="image-source-title">{plainText(source, 600)}</p>
      <Shown answer={answer} lines={6}>
        {(d) => <SourceDetail detail={d} />}
      </Shown>
    </Page>
  )
}

const mostRows = 100

interface EntryRow {
  member: ImageInMember
  entry: ImageEntry
}

function SourceDetail({ detail: d }: { detail: ImageDetail }) {
  const rows = d.in.flatMap((member) => member.entries.map((entry) => ({ member, entry })))
  const first = rows[0]
  return (
    <div class="image-list">
      <Figures>
        <Figure label="Clusters" note={d.unknown > 0 ? `${formatNumber(d.unknown)} more may have it` : undefined}>
          {formatNumber(d.members)}
        </Figure>
        <Figure label="Machines that need it">{formatNumber(d.references)}</Figure>
        <Figure label="Storage">{formatBytes(d.bytes)}</Figure>
        {(d.phases?.Failed ?? 0) > 0 && (
          <Figure label="Failed">
            <Sign tone="bad">{formatNumber(d.phases!.Failed!)}</Sign>
          </Figure>
        )}
        {d.unreferencedSince && (
          <Figure label="Not needed for">
            <Age at={d.unreferencedSince} />
          </Figure>
        )}
      </Figures>
      <Panel title="In clusters" aside={first && <Command text={`kubectl ot why image ${shellWord(first.entry.name)} --cluster ${shellWord(first.member.member)} -n ${shellWord(first.entry.namespace)}`} />}>
        <Table caption="List of clusters" columns={columns} rows={rows} keyOf={(r) => `${r.member.member}/${r.entry.namespace}/${r.entry.name}`} />
        {d.members > d.in.length && <p class="muted">The first {formatCount(d.in.length, 'cluster')} of {formatNumber(d.members)}, by name.</p>}
      </Panel>
    </div>
  )
}

const columns: Column<EntryRow>[] = [
  {
    title: 'Cluster',
    cell: ({ member }) => (
      <>
        <a href={href('clusters', member.member)}>{member.member}</a> {member.unknown && <Sign tone="unknown">{plainText(member.unknown, 60)}</Sign>}
      </>
    ),
  },
  { title: 'Image', cell: ({ entry }) => plainText(`${entry.namespace}/${entry.name}`) },
  {
    title: 'State',
    cell: ({ member, entry }) => (
      <Sign tone={entry.phase ? toneOf(entry.phase) : 'waiting'}>
        <a href={hrefWith({ why: whyOf(member.member, entry.namespace, entry.name) })}>{entry.phase ? plainText([entry.phase, entry.phase === 'Succeeded' ? '' : entry.reason].filter(Boolean).join(', '), 100) : 'planned'}</a>
      </Sign>
    ),
  },
  { title: 'Machines', right: true, wide: true, cell: ({ entry }) => formatNumber(entry.references) },
  { title: 'Not needed for', right: true, wide: true, cell: ({ entry }) => (entry.unreferencedSince ? <Age at={entry.unreferencedSince} /> : <span class="muted">–</span>) },
  { title: 'Storage', right: true, wide: true, cell: ({ entry }) => formatBytes(entry.bytes) },
]
