import { Page } from '../components/panel'

export default function PolicyPage() {
  return <Page title="Policy">{null}</Page>
}
