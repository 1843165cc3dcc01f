import { Page } from '../components/panel'

export default function RolloutsPage() {
  return <Page title="Rollouts">{null}</Page>
}
