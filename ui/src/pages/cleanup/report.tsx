// One report: what can go as areas, what stays and why, and the approval of exactly what is ticked.
import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import type { PruneGroup, PruneGroups, PruneProgressList, PruneReport, PruneReportList } from '../../api'
import { Command, formatMessage } from '../../components/command'
import { shellWord } from '../../shellword'
import { Hint } from '../../components/hint'
import { Chip, offsetOf, Pager } from '../../components/pager'
import { Figure, Figures, Page, Panel } from '../../components/panel'
import { Sign } from '../../components/sign'
import { Empty, Problem, Shown } from '../../components/states'
import { Table } from '../../components/table'
import { Age } from '../../components/time'
import { Treemap } from '../../components/treemap'
import { formatAge, formatBytes, formatCount, formatNumber, now, plainText } from '../../format'
import { ages, isFinal, reviewCommand, whoMisses, whyNotApprovable } from '../../prunes'
import { useAnswer, type Answer } from '../../query'
import { href, hrefWith, param, setParams } from '../../route'
import { Approve } from './approve'
import { ReportState, totalsOf } from './overview'
import { PrunePanel } from './prunes'
import { Rows } from './rows'

/** The most groups that are asked for: the others are counted together. */
const maxGroups = 1000

/** How many of them a page of the list has. */
const listedGroups = 100

export function Report({ name }: { name: string }) {
  const answer = useAnswer<PruneReportList>('prunereports', { name }, ['prunes'])
  return (
    <Page
      title={
        <>
          <a class="crumb" href="/cleanup">
            Clean up
          </a>{' '}
          {plainText(name, 253)}
        </>
      }
      aside={<Command text={`kubectl ot prune review ${shellWord(name)}`} />}
    >
      <Shown answer={answer} lines={8}>
        {(list) => <Loaded report={list.reports[0]!} />}
      </Shown>
    </Page>
  )
}

function Loaded({ report: r }: { report: PruneReport }) {
  const prunes = useAnswer<PruneProgressList>('imageprunes', { report: r.name, sort: 'newest', limit: 20 }, ['prunes'])
  const whyNot = whyNotApprovable(r)
  const shown = prunes.value.value?.prunes.filter((p) => !isFinal(p) || p.name === param('prune')) ?? []
  return (
    <div class="stack">
      {shown.map((p) => (
        <PrunePanel key={p.name} prune={p} />
      ))}
      {whyNot ? <NotApprovable report={r} why={whyNot} /> : <Complete report={r} taken={prunes.value.value?.prunes.map((p) => p.name) ?? []} />}
    </div>
  )
}

function NotApprovable({ report: r, why }: { report: PruneReport; why: string }) {
  return (
    <Panel title={<ReportState report={r} />}>
      <p>{formatMessage(why, 2048)}</p>
      {r.phase === 'Collecting' && (
        <progress max={r.clusters.total} value={r.clusters.answered + r.clusters.unknown} aria-label="Clusters that have answered">
          {r.clusters.answered} of {r.clusters.total}
        </progress>
      )}
      {r.schedule && r.lastReport && (
        <p>
          <a href={href('cleanup', r.lastReport)}>Go to {r.lastReport}</a>
        </p>
      )}
    </Panel>
  )
}

/** What of the report is shown, from the address. */
export interface Filter {
  by: 'image' | 'cluster'
  clusters: string[]
  includeOthers: boolean
  unreferencedFor: string
}

function readFilter(): Filter {
  const age = param('age')
  return {
    by: param('by') === 'cluster' ? 'cluster' : 'image',
    clusters: param('clusters').split(',').filter(Boolean),
    includeOthers: param('others') === '1',
    unreferencedFor: ages.some((a) => a.value === age) ? age : '',
  }
}

function Complete({ report: r, taken }: { report: PruneReport; taken: string[] }) {
  const filter = readFilter()
  const verdict = param('verdict') || 'candidate'
  const groups = useAnswer<PruneGroups>(
    verdict === 'candidate' ? 'prunereports/groups' : undefined,
    { report: r.name, by: filter.by, clusters: filter.clusters.join(','), includeOthers: filter.includeOthers, unreferencedFor: filter.unreferencedFor, limit: maxGroups },
    [],
  )
  return (
    <>
      <Summary report={r} groups={groups.value} />
      <Verdicts report={r} verdict={verdict} />
      {verdict === 'candidate' ? <Candidates report={r} filter={filter} answer={groups.value} taken={taken} /> : <Rows report={r} verdict={verdict} />}
    </>
  )
}

function Summary({ report: r, groups }: { report: PruneReport; groups: Answer<PruneGroups> }) {
  return (
    <>
      <Figures>
        <Figure label="Answered" note={r.completedAt && <>complete <Age at={r.completedAt} ago /></>}>
          {r.clusters.answered}/{r.clusters.total}
        </Figure>
        <Figure label="Can go" note={formatCount(r.candidates.count, 'image')}>
          {formatBytes(r.candidates.bytes)}
        </Figure>
        {r.others.count > 0 && (
          <Figure label="Of them made by people" note={formatCount(r.others.count, 'image')}>
            {formatBytes(r.others.bytes)}
          </Figure>
        )}
        <Figure label="Digest" note={<DigestState report={r} groups={groups} />}>
          <Hint text={r.digest}>
            <code class="digest">{(r.digest ?? '').slice(0, 8)}</code>
          </Hint>
        </Figure>
      </Figures>
      {r.clusters.unknown > 0 && (
        <p>
          <Sign tone="unknown">{formatCount(r.clusters.unknown, 'cluster')} unknown, where nothing can go:</Sign>{' '}
          {(r.unknownClusters ?? []).slice(0, 8).map((c, i) => (
            <>
              {i > 0 && ', '}
              <a href={href('clusters', c.cluster)}>{c.cluster}</a>{' '}
              <Hint class="muted" text={formatMessage(c.message ?? '')}>
                {plainText(c.reason)}
              </Hint>
            </>
          ))}
          {r.clusters.unknown > 8 && (
            <>
              {' '}
              <a href={verdictHref('unknown')}>all</a>
            </>
          )}
        </p>
      )}
    </>
  )
}

/** DigestState says whether the pages of the report are those that its digest stands for: the hub has compared them. */
function DigestState({ report: r, groups }: { report: PruneReport; groups: Answer<PruneGroups> }) {
  if (groups.value) return groups.value.digest === r.digest ? <Sign tone="good">unchanged</Sign> : <Sign tone="attention">the report is another one now</Sign>
  if (groups.error?.status === 410) return <Sign tone="bad">changed</Sign>
  return null
}

/** Returns the address of what has a verdict, from its first page on: a cursor is a place in all rows of the report. */
function verdictHref(verdict: string): string {
  return hrefWith({ verdict: verdict === 'candidate' ? undefined : verdict, after: undefined, offset: undefined, reason: undefined })
}

function Verdicts({ report: r, verdict }: { report: PruneReport; verdict: string }) {
  const kept = (r.kept ?? []).reduce((sum, k) => sum + k.count, 0)
  const choices = [
    { verdict: 'candidate', label: 'Can go', count: r.candidates.count },
    { verdict: 'kept', label: 'Stay', count: kept },
    { verdict: 'orphan', label: 'Storage without an image', count: r.orphans.count },
    { verdict: 'unknown', label: 'Unknown clusters', count: r.clusters.unknown },
  ]
  return (
    <nav class="choices" aria-label="Verdict">
      {choices.map((c) => (
        <a key={c.verdict} href={verdictHref(c.verdict)} aria-current={c.verdict === verdict ? 'true' : undefined}>
          {c.label} <span class="choice-count">{formatNumber(c.count)}</span>
        </a>
      ))}
    </nav>
  )
}

function Candidates({ report: r, filter, answer, taken }: { report: PruneReport; filter: Filter; answer: Answer<PruneGroups>; taken: string[] }) {
  const last = useSignal<PruneGroups | undefined>(undefined)
  useEffect(() => {
    if (answer.value) last.value = answer.value
  }, [answer.value])
  // A filter that is changed dims what was there until its answer arrives.
  const groups = answer.value ?? last.value
  const ticked = new Set(param('tick').split(',').filter(Boolean))
  const command = reviewCommand({ report: r.name, images: [], clusters: filter.clusters, includeOthers: filter.includeOthers }, filter.by)
  return (
    <>
      <Filters report={r} filter={filter} />
      {answer.error && <Problem error={answer.error} at={answer.at} />}
      {groups && groups.by === filter.by && (
        <div class={answer.value ? 'stack' : 'stack stale'} aria-busy={!answer.value}>
          {groups.groups.length === 0 ? <NothingShown groups={groups} filter={filter} /> : <Groups report={r} groups={groups} ticked={ticked} />}
          <Outside groups={groups} filter={filter} />
        </div>
      )}
      <Command text={command} />
      {/* What is approved is of these filters: never of groups that former ones have shown. */}
      {filter.by === 'image' && (answer.value && !answer.error ? <Approve report={r} filter={filter} groups={answer.value} ticked={ticked} taken={taken} /> : <p class="muted">What can be approved is not known until this list is read.</p>)}
    </>
  )
}

function Filters({ report: r, filter }: { report: PruneReport; filter: Filter }) {
  const cluster = useSignal('')
  const addCluster = (event: Event): void => {
    event.preventDefault()
    const name = cluster.value.trim()
    if (name) setParams({ clusters: [...new Set([...filter.clusters, name])].join(','), offset: undefined }, { replace: false })
    cluster.value = ''
  }
  return (
    <div class="filters">
      <nav class="choices" aria-label="Group by">
        {(['image', 'cluster'] as const).map((by) => (
          <a key={by} href={hrefWith({ by: by === 'image' ? undefined : by, offset: undefined })} aria-current={by === filter.by ? 'true' : undefined}>
            by {by}
          </a>
        ))}
      </nav>
      <nav class="choices" aria-label="Drawn as">
        <a href={hrefWith({ view: undefined })} aria-current={param('view') !== 'list' ? 'true' : undefined}>
          areas
        </a>
        <a href={hrefWith({ view: 'list' })} aria-current={param('view') === 'list' ? 'true' : undefined}>
          list
        </a>
      </nav>
      <label>
        unreferenced for
        <select value={filter.unreferencedFor} onChange={(event) => setParams({ age: event.currentTarget.value, offset: undefined })}>
          {ages.map((a) => (
            <option key={a.value} value={a.value}>
              {a.label}
            </option>
          ))}
        </select>
      </label>
      {r.others.count > 0 && (
        <label>
          <input type="checkbox" checked={filter.includeOthers} onChange={(event) => setParams({ others: event.currentTarget.checked ? '1' : undefined, offset: undefined })} />
          include {formatNumber(r.others.count)} made by people
        </label>
      )}
      <form onSubmit={addCluster}>
        <input type="text" aria-label="Only in a cluster" placeholder="only in cluster…" spellcheck={false} autocomplete="off" value={cluster.value} onInput={(event) => (cluster.value = event.currentTarget.value)} />
      </form>
      {filter.clusters.map((c) => (
        <Chip key={c} label="cluster" value={c} without={{ clusters: filter.clusters.filter((other) => other !== c).join(','), offset: undefined }} />
      ))}
    </div>
  )
}

function NothingShown({ groups, filter }: { groups: PruneGroups; filter: Filter }) {
  return (
    <Empty title="Nothing can go here.">
      {groups.leftOut.count > 0 && !filter.includeOthers && <p>{totalsOf(groups.leftOut)}, were made by people: include them above to see them.</p>}
      {groups.tooRecent.count > 0 && <p>{totalsOf(groups.tooRecent)}, were needed more recently.</p>}
      {groups.leftOut.count + groups.tooRecent.count === 0 && <p>Each image that the clusters reported is needed, or was of late.</p>}
    </Empty>
  )
}

/** Outside says what the filters leave out. */
function Outside({ groups: g, filter }: { groups: PruneGroups; filter: Filter }) {
  return (
    <ul class="plain-list muted">
      {g.leftOut.count > 0 && filter.includeOthers === false && <li>{totalsOf(g.leftOut)}, made by people, are not shown.</li>}
      {g.tooRecent.count > 0 && (
        <li>
          {totalsOf(g.tooRecent)}, are not shown: somewhere they were needed more recently, or it is not known when. A prune takes an image by its name, not by its age.
        </li>
      )}
      {g.omitted.count > 0 && <li>{totalsOf(g.omitted)}, are in more names than are listed: limit the report by clusters.</li>}
      {g.warnings?.map((w) => (
        <li key={w}>
          <Sign tone="attention">{plainText(w, 300)}</Sign>
        </li>
      ))}
    </ul>
  )
}

function Groups({ report: r, groups, ticked }: { report: PruneReport; groups: PruneGroups; ticked: ReadonlySet<string> }) {
  const byImage = groups.by === 'image'
  const tick = (name: string, on: boolean): void => {
    const next = new Set(ticked)
    if (on) next.add(name)
    else next.delete(name)
    setParams({ tick: [...next].join(',') })
  }
  const clusterHref = (name: string): string => hrefWith({ by: undefined, clusters: name, offset: undefined })
  if (param('view') === 'list') return <GroupTable groups={groups} ticked={ticked} tick={tick} clusterHref={clusterHref} />
  return (
    <>
      <Treemap
        label={byImage ? `Images of report ${r.name} that can go, by bytes` : `Clusters of report ${r.name}, by the bytes that can go`}
        tiles={groups.groups.map((g) => ({ key: g.name, name: byImage ? g.name.slice(g.name.indexOf('/') + 1) : g.name, details: detailsOf(g, byImage), size: g.bytes, shade: shadeOf(g), mark: g.others ? whoMisses(g) : undefined }))}
        restSize={groups.omitted.bytes}
        restText={(n) => (byImage ? `${formatCount(n, 'smaller image')}: the list has them` : `${formatCount(n, 'more cluster')}: the list has them`)}
        restHref={hrefWith({ view: 'list' })}
        {...(byImage ? { ticked, onTick: tick } : { hrefOf: clusterHref })}
      />
      <p class="legend muted">
        <span class="legend-ramp" aria-hidden="true" /> the stronger the colour, the longer nothing has needed it
        {groups.groups.some((g) => g.others) && (
          <>
            {' · '}
            <span class="legend-hatch" aria-hidden="true" /> made by people
          </>
        )}
        {byImage && ' · tick what is to go'}
      </p>
    </>
  )
}

function detailsOf(g: PruneGroup, byImage: boolean): string[] {
  const since = g.oldestUnreferencedSince
  const [namespace] = g.name.split('/')
  return [
    formatBytes(g.bytes),
    byImage ? formatCount(g.clusters, 'cluster') : formatCount(g.images, 'image'),
    since ? `unreferenced for up to ${formatAge(since)}` : 'unknown since when',
    ...(byImage ? [`in ${namespace}`] : []),
  ]
}

const yearMilliseconds = 365 * 86_400_000

/** Returns how dark a group is drawn: from nothing to a year without a need, by the square root. */
function shadeOf(g: PruneGroup): number {
  if (!g.oldestUnreferencedSince) return 0
  return Math.sqrt(Math.min(1, Math.max(0, now.peek() - Date.parse(g.oldestUnreferencedSince)) / yearMilliseconds))
}

function GroupTable({ groups, ticked, tick, clusterHref }: { groups: PruneGroups; ticked: ReadonlySet<string>; tick: (name: string, on: boolean) => void; clusterHref: (name: string) => string }) {
  const byImage = groups.by === 'image'
  const offset = offsetOf('offset')
  return (
    <>
      {byImage && (
        <p>
          <button type="button" class="button button-quiet" onClick={() => setParams({ tick: groups.groups.map((g) => g.name).join(',') })}>
            Tick all {formatNumber(groups.groups.length)} that are listed
          </button>
          {ticked.size > 0 && (
            <button type="button" class="button button-quiet" onClick={() => setParams({ tick: undefined })}>
              Tick none
            </button>
          )}
        </p>
      )}
      <Table<PruneGroup>
        caption={byImage ? 'Images that can go' : 'Clusters in which images can go'}
        rows={groups.groups.slice(offset, offset + listedGroups)}
        keyOf={(g) => g.name}
        columns={[
          {
            title: byImage ? 'Image' : 'Cluster',
            cell: (g) =>
              byImage ? (
                <label class="tick">
                  <input type="checkbox" checked={ticked.has(g.name)} onChange={(event) => tick(g.name, event.currentTarget.checked)} /> {plainText(g.name)}
                </label>
              ) : (
                <a href={clusterHref(g.name)}>{plainText(g.name)}</a>
              ),
          },
          { title: 'Clusters', right: true, wide: true, cell: (g) => formatNumber(g.clusters) },
          { title: 'Images', right: true, wide: true, cell: (g) => formatNumber(g.images) },
          { title: 'Bytes', right: true, cell: (g) => formatBytes(g.bytes) },
          { title: 'Oldest', right: true, cell: (g) => (g.oldestUnreferencedSince ? <Age at={g.oldestUnreferencedSince} /> : 'unknown') },
          { title: 'Would anything miss it', wide: true, cell: (g) => plainText(whoMisses(g)) },
        ]}
      />
      <Pager name="offset" shown={Math.max(0, Math.min(listedGroups, groups.groups.length - offset))} limit={listedGroups} total={groups.groups.length} of={byImage ? 'images' : 'clusters'} />
    </>
  )
}
