// Who the person is for the hub's API server, and what that allows.
import { Command, forHub } from '../components/command'
import { Page, Panel } from '../components/panel'
import { Sign } from '../components/sign'
import { Table } from '../components/table'
import { Clock } from '../components/time'
import { formatDuration, now, plainText } from '../format'
import { session, signOut, type Me, type Permission } from '../session'
import '../styles/profile.css'

const modes: Record<Me['mode'], string> = {
  local: 'by your kubeconfig, through kubectl ot dashboard',
  token: 'by a bearer token that you pasted',
  proxy: 'by the token that the proxy in front adds to each request',
}

export default function ProfilePage() {
  if (session.value.state !== 'signedIn') return null
  const { me } = session.value
  return (
    <Page title="Profile" aside={<Command text="kubectl auth whoami" />}>
      <div class="profile">
        <Panel
          title="Who you are"
          aside={
            me.signOut && (
              <button type="button" class="button" onClick={() => void signOut()}>
                Sign out
              </button>
            )
          }
        >
          <dl class="facts">
            <dt>User</dt>
            <dd>
              <strong>{plainText(me.user, 400)}</strong>
            </dd>
            <dt>Groups</dt>
            <dd>{me.groups && me.groups.length > 0 ? <Groups groups={me.groups} /> : 'none'}</dd>
            <dt>Signed in</dt>
            <dd>{modes[me.mode] ?? 'in a way that this page does not know'}</dd>
            <dt>Session</dt>
            <dd>
              <SessionEnd me={me} />
            </dd>
          </dl>
          <p class="muted">The hub's API server says this of you. What you change is changed in this name, with these rights and no others.</p>
        </Panel>
        <Panel title="Versions">
          <dl class="facts">
            <dt>Hub</dt>
            <dd>{me.hubVersion || 'unknown'}</dd>
            <dt>Page</dt>
            <dd>
              {me.version || me.hubVersion || 'unknown'}, served by {me.mode === 'local' ? 'kubectl ot' : 'the hub'}
            </dd>
            {me.hubNamespace && (
              <>
                <dt>Namespace</dt>
                <dd>{me.hubNamespace}</dd>
              </>
            )}
            {me.context && (
              <>
                <dt>Context</dt>
                <dd>{plainText(me.context, 200)}</dd>
              </>
            )}
          </dl>
          <Command text="kubectl ot version" />
        </Panel>
      </div>
      <Panel title="What you may do">
        <Table<Permission>
          caption="Your rights"
          rows={me.may}
          keyOf={(m) => `${m.verb} ${m.resource}`}
          columns={[
            { title: 'May', cell: (m) => (m.allowed ? <Sign tone="good">yes</Sign> : <Sign tone="quiet">no</Sign>) },
            { title: 'Verb', cell: (m) => m.verb },
            { title: 'Resource', cell: (m) => (m.resource === 'fleet' ? '/fleet/v1/*' : m.resource) },
            { title: 'For', wide: true, cell: (m) => <span class="muted">{purposes[`${m.verb} ${m.resource}`] ?? ''}</span> },
            { title: 'ClusterRole that has it', cell: (m) => (m.role ? <code>{m.role}</code> : <span class="muted">none of the chart's: it needs a rule of its own</span>) },
            { title: 'Check', wide: true, cell: (m) => <code>{forHub(canI(m, me))}</code> },
          ]}
        />
        <p class="muted">Asked of the API server for you; it is asked anew every half minute. A role is given by a ClusterRoleBinding.</p>
      </Panel>
    </Page>
  )
}

const shownGroups = 12

function Groups({ groups }: { groups: readonly string[] }) {
  return (
    <ul class="group-list">
      {groups.slice(0, shownGroups).map((g) => (
        <li key={g}>{plainText(g, 200)}</li>
      ))}
      {groups.length > shownGroups && (
        <li>
          <details>
            <summary>and {groups.length - shownGroups} more</summary>
            {groups
              .slice(shownGroups)
              .map((g) => plainText(g, 200))
              .join(', ')}
          </details>
        </li>
      )}
    </ul>
  )
}

function SessionEnd({ me }: { me: Me }) {
  if (!me.expiresAt) return <>{me.mode === 'local' ? 'until kubectl ot dashboard ends' : 'as long as the token is accepted'}</>
  const left = Date.parse(me.expiresAt) - now.value
  return left > 0 ? (
    <>
      ends in <strong>{formatDuration(left)}</strong>, <Clock at={me.expiresAt} />
    </>
  ) : (
    <Sign tone="attention">has ended</Sign>
  )
}

/** What the rights are for, as the pages use them. */
const purposes: Record<string, string> = {
  'get fleet': 'seeing the fleet: all pages',
  'approve fleetdiskimages': 'approving a wave of a rollout',
  'update fleetdiskimages': 'pausing, resuming, aborting and retrying rollouts',
  'create prunereports': 'making a report of what can go',
  'approve imageprunes': 'deleting what a report found',
  'update imageprunes': 'taking a prune back',
  'delete imageprunes': 'removing a prune that is over',
  'update memberclusters': 'quarantining a cluster',
  'update configmaps': 'changing the policy',
  'create configmaps': 'writing the first policy',
}

/** Returns the command that asks the same of the API server. */
function canI(m: Permission, me: Me): string {
  if (m.resource === 'fleet') return `kubectl auth can-i ${m.verb} /fleet/v1/summary`
  if (m.resource !== 'configmaps') return `kubectl auth can-i ${m.verb} ${m.resource}.pelotech.ot`
  return `kubectl auth can-i ${m.verb} configmaps${m.verb === 'create' ? '' : `/${me.policyName ?? ''}`} -n ${me.policyNamespace ?? ''}`
}
