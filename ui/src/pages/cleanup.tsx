import { Page } from '../components/panel'

export default function CleanupPage() {
  return <Page title="Clean up">{null}</Page>
}
