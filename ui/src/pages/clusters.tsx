import { Page } from '../components/panel'

export default function ClustersPage() {
  return <Page title="Clusters">{null}</Page>
}
