// One rollout.
import { useRef } from 'preact/hooks'
import type { RolloutClusters, RolloutDetail, RolloutVersion } from '../../api'
import { Command, formatMessage } from '../../components/command'
import { shellWord } from '../../shellword'
import { Chip, offsetOf, Pager } from '../../components/pager'
import { Figure, Figures, Page, Panel } from '../../components/panel'
import { Sign } from '../../components/sign'
import { Shown } from '../../components/states'
import { Table, type Column } from '../../components/table'
import { Age, Clock } from '../../components/time'
import { formatBytes, formatNumber, plainText } from '../../format'
import { timelineOf, toneOfState, withoutCommand, wordOf } from '../../lanes'
import { useAnswer } from '../../query'
import { href, hrefWith, param } from '../../route'
import { whyOf } from '../../why'
import { ChangeList } from './changes'
import { Lanes } from './lanes'
import { Expected, RolloutSign, toneOfRollout } from './phase'
import { Approve, PauseOrResume, Retry } from './writes'

export function RolloutPage({ name }: { name: string }) {
  const answer = useAnswer<RolloutDetail>('rollouts/detail', { name }, ['rollouts', 'members'])
  return (
    <Page
      title={
        <>
          {name} <span class="rollout-version">{answer.value.value?.version}</span>
        </>
      }
      aside={<Command text={`kubectl ot rollout status ${shellWord(name)}`} />}
    >
      <Shown answer={answer} lines={8}>
        {(detail) => <Detail detail={detail} />}
      </Shown>
    </Page>
  )
}

function Detail({ detail: d }: { detail: RolloutDetail }) {
  const failing = [...(d.failing ?? []), ...(d.blocked ?? [])]
  const waiting = d.lanes.find((l) => l.name === d.currentWave && l.requireApproval && (d.reason === 'AwaitingApproval' || (l.pendingSources ?? 0) > 0))
  // The dialog that a person reads stays, also where somebody else approves meanwhile.
  const asked = useRef<string>(undefined)
  if (waiting && (param('do') !== 'approve' || !asked.current)) asked.current = waiting.name
  const wave = param('do') === 'approve' ? asked.current : waiting?.name
  const failed = (d.clusters.failed ?? 0) + (d.clusters.timedOut ?? 0)
  return (
    <div class="rollout">
      <div class="rollout-head">
        <div class="rollout-state">
          <RolloutSign rollout={d} />
          {d.paused?.by && (
            <span class="muted">
              by {plainText(d.paused.by, 80)}
              {d.paused.because && `: ${plainText(d.paused.because, 200)}`}
            </span>
          )}
        </div>
        <div class="rollout-actions">
          {wave && <Approve key={wave} detail={d} wave={wave} name="approve" primary />}
          {(failed > 0 || param('do') === 'retry') && <Retry detail={d} />}
          {(d.phase !== 'Succeeded' || d.paused || param('do') === 'pause' || param('do') === 'resume') && <PauseOrResume detail={d} />}
        </div>
      </div>
      {d.message && d.phase !== 'Succeeded' && <p class={messageClass(d)}>{formatMessage(withoutCommand(d.message), 2048)}</p>}
      <Figures>
        <Figure label="Clusters ready" note={`of ${formatNumber(d.clusters.total ?? 0)}`}>
          {d.observed ? formatNumber(d.clusters.succeeded ?? 0) : 'unknown'}
        </Figure>
        {failed > 0 && (
          <Figure label="Failed" note={d.maxFailures && d.maxFailures !== '0' ? `${d.maxFailures} may` : 'none may'}>
            <Sign tone="bad">{formatNumber(failed)}</Sign>
          </Figure>
        )}
        <Figure label="Expected">
          <span class="rollout-expected">
            <Expected rollout={d} />
          </span>
        </Figure>
        {d.since && (
          <Figure label="Since" note="ago">
            <Age at={d.since} />
          </Figure>
        )}
        <Figure label="Disk">{formatBytes(d.diskBytes)}</Figure>
      </Figures>
      <Panel title="Waves" aside={<span>{d.offlineClusters === 'Wait' ? 'a wave waits for clusters that are offline' : 'clusters that are offline catch up later'}</span>}>
        <Lanes detail={d} />
      </Panel>
      {failing.length > 0 && (
        <Panel title="Clusters that need help" tone="attention" aside={failed + (d.blocked?.length ?? 0) > failing.length && <span>the first {failing.length}</span>}>
          <Table caption="What failing and blocked clusters say" columns={helpColumns(d)} rows={failing} keyOf={(c) => c.cluster} />
        </Panel>
      )}
      {(param('state') || param('wave')) && <Clusters detail={d} />}
      <div class="columns">
        <Changes detail={d} />
        <Timeline detail={d} />
      </div>
      <Versions detail={d} />
    </div>
  )
}

function messageClass(d: RolloutDetail): string {
  const tone = toneOfRollout(d)
  return tone === 'bad' ? 'banner banner-bad' : tone === 'attention' ? 'banner banner-attention' : 'muted'
}

interface NamedCluster {
  cluster: string
  state: Parameters<typeof wordOf>[0]
  reason?: string
  message?: string
}

/** The image of a cluster, in words: the panel that says why it is where it is. */
function whyHref(d: RolloutDetail, cluster: string): string {
  return hrefWith({ why: whyOf(cluster, d.namespace, d.image) })
}

function helpColumns(d: RolloutDetail): Column<NamedCluster>[] {
  return [
    { title: 'Cluster', cell: (c) => <a href={href('clusters', c.cluster)}>{c.cluster}</a> },
    { title: 'State', cell: (c) => <Sign tone={c.state === 'Progressing' || c.state === 'ToApply' ? 'attention' : toneOfState(c.state)}>{plainText(c.reason || wordOf(c.state), 64)}</Sign> },
    { title: 'What it says', cell: (c) => formatMessage(c.message ?? '', 400) },
    { title: 'Why', right: true, cell: (c) => <a href={whyHref(d, c.cluster)}>Explain</a> },
  ]
}

const clustersLimit = 50

function Clusters({ detail: d }: { detail: RolloutDetail }) {
  const [state, wave] = [param('state'), param('wave')]
  const query = { name: d.name, state, wave, offset: offsetOf('from') || undefined, limit: clustersLimit }
  const answer = useAnswer<RolloutClusters>('rollouts/clusters', query, ['rollouts', 'transfers'])
  return (
    <Panel
      title="Clusters"
      aside={
        <>
          {wave && <Chip label="wave" value={wave} without={{ wave: undefined, from: undefined }} />}
          {state && <Chip label="state" value={wordOf(state as NamedCluster['state'])} without={{ state: undefined, from: undefined }} />}
        </>
      }
    >
      <Shown answer={answer}>
        {(list) => (
          <>
            <Table
              caption="List of clusters"
              rows={list.clusters}
              keyOf={(c) => c.cluster}
              empty="No cluster is like that."
              columns={[
                { title: 'Cluster', cell: (c) => <a href={href('clusters', c.cluster)}>{c.cluster}</a> },
                { title: 'Wave', wide: true, cell: (c) => c.wave },
                { title: 'State', cell: (c) => <Sign tone={toneOfState(c.state)}>{wordOf(c.state)}</Sign> },
                { title: 'Reason', cell: (c) => [c.reason, c.message].filter(Boolean).map((t) => formatMessage(t!, 300)).join(': ') || <span class="muted">–</span> },
                { title: 'Started', wide: true, cell: (c) => (c.startedAt ? <Age at={c.startedAt} ago /> : <span class="muted">–</span>) },
                { title: 'Expected', cell: (c) => (c.expected?.at ? <Clock at={c.expected.at} /> : <span class="muted">{c.expected?.message ?? '–'}</span>) },
                { title: 'Why', right: true, cell: (c) => c.startedAt && <a href={whyHref(d, c.cluster)}>Explain</a> },
              ]}
            />
            <Pager name="from" shown={list.clusters.length} limit={clustersLimit} total={list.total} of="clusters" />
          </>
        )}
      </Shown>
    </Panel>
  )
}

function Changes({ detail: d }: { detail: RolloutDetail }) {
  const c = d.changes
  return (
    <Panel title={c ? `Changed since ${c.since}` : 'What is rolled out'}>
      <ChangeList detail={d} />
      <dl class="rollout-facts">
        <dt>Source</dt>
        <dd class="rollout-source">{plainText(d.source, 600)}</dd>
        <dt>In clusters</dt>
        <dd>
          <a href={href('images', d.name)}>
            {d.namespace}/{d.image}
          </a>
        </dd>
        {d.progressDeadline && (
          <>
            <dt>Deadline</dt>
            <dd>{d.progressDeadline} a cluster, while it is online</dd>
          </>
        )}
      </dl>
    </Panel>
  )
}

function Timeline({ detail }: { detail: RolloutDetail }) {
  return (
    <Panel title="What happened">
      <ol class="timeline">
        {timelineOf(detail)
          .slice(0, 14)
          .map((e, i) => (
            <li key={i}>
              <span class="timeline-at muted">{e.at ? <Clock at={e.at} /> : 'now'}</span>
              <Sign tone={e.tone}>{plainText(e.text, 300)}</Sign>
            </li>
          ))}
      </ol>
    </Panel>
  )
}

function Versions({ detail: d }: { detail: RolloutDetail }) {
  const columns: Column<RolloutVersion>[] = [
    { title: 'Version', cell: (v) => <strong>{v.version}</strong> },
    { title: 'Since', cell: (v) => <Age at={v.since} ago /> },
    { title: 'Image', wide: true, cell: (v) => `${v.namespace}/${v.image}` },
    { title: 'Revision', wide: true, cell: (v) => <code>{v.revision}</code> },
    { title: 'Approved by', cell: (v) => (v.approvals ?? []).map((a) => `${a.wave}: ${plainText(a.by, 80)}`).join(', ') || <span class="muted">–</span> },
    {
      title: 'Back to it',
      cell: (v) =>
        v.version === d.version ? (
          <span class="muted">current</span>
        ) : v.canGoBack ? (
          <Command text={`kubectl ot rollout abort ${shellWord(d.name)} --back-to ${shellWord(v.version)}`} />
        ) : (
          <span class="muted">{plainText(v.notRecorded ?? '', 120)}</span>
        ),
    },
  ]
  return (
    <Panel title="Versions" aside={<Command text={`kubectl ot rollout history ${shellWord(d.name)}`} />}>
      <Table caption="List of versions" columns={columns} rows={d.versions} keyOf={(v) => v.version} />
    </Panel>
  )
}
