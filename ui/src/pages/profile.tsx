import { Page } from '../components/panel'

export default function ProfilePage() {
  return <Page title="Profile">{null}</Page>
}
