//go:build linux

package signin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/oidc"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/dashboard"
	"github.com/pelotech/ot-fleet/ui"
)

const imagePath = "/k8s/apis/pelotech.ot/v1alpha1/fleetdiskimages/"

func newFleetImage(name string) *v1alpha1.FleetDiskImage {
	image := fleet.NewFleetImage(name)
	image.Spec.Version, image.Spec.Placement.ClusterNames = "2.1.0", []string{"nowhere"}
	image.Spec.Rollout.Waves = []v1alpha1.Wave{{Name: "edge", RequireApproval: true}}
	return image
}

// awaitServed waits until a replica serves the dashboard.
func (b *browser) awaitServed(t *testing.T, h *program.Hub) {
	t.Helper()
	require.True(t, testenv.AwaitCondition(t, func() bool {
		require.NoError(t, h.ExitError())
		response, err := b.Get(h.UIURL + "/")
		if err == nil {
			_ = response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK
	}), "the dashboard is not served; log: %s", h.LogFile())
}

// TestSignInHoldsAtEachReplica shows that who signs in at one replica reads through each, elected or
// not, also one that has restarted since, until they sign out.
func TestSignInHoldsAtEachReplica(t *testing.T) {
	elected, other := shared.electedAndOther(t)
	for name, groups := range map[string][]string{
		"a short token": {readers},
		"a long token":  append(strings.Split(strings.Repeat("cn=operators of plant 0123456789,ou=groups,dc=example,dc=com;", 60), ";"), readers),
	} {
		for _, first := range []*program.Hub{elected, other} {
			t.Run(name, func(t *testing.T) {
				b := newBrowser(t)
				assert.Equal(t, http.StatusUnauthorized, b.get(t, first.UIURL, summaryPath).status, "nobody is signed in")
				requireSignedIn(t, b.login(t, first.UIURL, shared.issueToken(t, viewer, groups...)))
				for _, r := range []*program.Hub{other, elected} {
					a := b.get(t, r.UIURL, summaryPath)
					assert.Equal(t, http.StatusOK, a.status, a.body)
					me := b.whoAmI(t, r.UIURL)
					assert.Equal(t, viewer, me.User)
					assert.Equal(t, ui.ModeToken, me.Mode)
					assert.Contains(t, me.Groups, readers)
					require.NotNil(t, me.ExpiresAt)
					assert.Less(t, time.Until(me.ExpiresAt.Time), time.Hour+time.Minute, "the token's end")
				}
				requireSignedIn(t, b.send(t, http.MethodPost, other.UIURL, "/auth/logout", "", ""))
				assert.Equal(t, http.StatusUnauthorized, b.get(t, first.UIURL, summaryPath).status)
			})
		}
	}

	b := newBrowser(t)
	requireSignedIn(t, b.login(t, elected.UIURL, shared.issueToken(t, viewer, readers)))
	for name, r := range shared.replicas {
		if r == other {
			r.Kill()
			require.NoError(t, shared.startReplica(t.Context(), name))
			b.awaitServed(t, shared.replicas[name])
			assert.Equal(t, viewer, b.whoAmI(t, shared.replicas[name].UIURL).User)
		}
	}

	secret := &corev1.Secret{}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKey{Namespace: program.HubNamespace, Name: dashboard.KeySecret}, secret), "all replicas share it")
}

// TestTokenOfServiceAccount shows that tokens of the API server itself do as well.
func TestTokenOfServiceAccount(t *testing.T) {
	elected, _ := shared.electedAndOther(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "wall-display"}}
	shared.CreateForTest(t, account)
	cfg, err := shared.Plane.ServiceAccountConfig(t.Context(), account.Namespace, account.Name)
	require.NoError(t, err)
	b := newBrowser(t)
	a := b.login(t, elected.UIURL, cfg.BearerToken)
	assert.Equal(t, http.StatusForbidden, a.status)
	assert.Equal(t, "system:serviceaccount:default:wall-display may not get "+summaryPath+": that takes ClusterRole ot-hub-reader, by a ClusterRoleBinding", errorOf(t, a))
	assert.Empty(t, a.header.Values("Set-Cookie"))
}

// TestStreamThroughOtherReplica shows that events reach a reader through a replica that is not
// elected, and that the stream ends when that replica is told to stop.
func TestStreamThroughOtherReplica(t *testing.T) {
	shared.electedAndOther(t)
	require.NoError(t, shared.startReplica(t.Context(), "three"))
	third := shared.replicas["three"]
	defer delete(shared.replicas, "three")
	b := newBrowser(t)
	b.awaitServed(t, third)
	requireSignedIn(t, b.login(t, third.UIURL, shared.issueToken(t, viewer, readers)))
	require.Equal(t, http.StatusOK, b.get(t, third.UIURL, summaryPath).status)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, third.UIURL+"/fleet/v1/events", nil)
	require.NoError(t, err)
	response, err := b.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusOK, response.StatusCode)
	lines := bufio.NewScanner(response.Body)
	awaitLine := func(part string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), part) {
				return
			}
		}
		require.NoError(t, lines.Err())
		require.Fail(t, "the stream has ended", "before a line with %s", part)
	}
	awaitLine(`"topics":[]`)
	awaitLine(": heartbeat") // over HTTP/2, a deadline that is left behind would have ended it
	shared.SetPolicyForTest(t, map[string]string{"concurrency": "3"})
	awaitLine("policy")
	require.NoError(t, third.Stop(testenv.Patience))
	for lines.Scan() {
	}
}

// TestViewersWriteIsRefusedByTheAPIServer shows that a request that no page would send reaches the
// API server as the viewer's own, and is answered in its words.
func TestViewersWriteIsRefusedByTheAPIServer(t *testing.T) {
	elected, other := shared.electedAndOther(t)
	image := newFleetImage("forged")
	shared.CreateForTest(t, image)
	token := shared.issueToken(t, viewer, readers, viewers)
	b := newBrowser(t)
	requireSignedIn(t, b.login(t, elected.UIURL, token))

	patch := `{"spec":{"version":"6.6.6"}}`
	forged := b.send(t, http.MethodPatch, other.UIURL, imagePath+image.Name, "application/merge-patch+json", patch)
	assert.Equal(t, http.StatusForbidden, forged.status)
	assert.Contains(t, forged.body, `User \"`+viewer+`\" cannot patch resource \"fleetdiskimages\"`)
	direct := sendDirectly(t, token, http.MethodPatch, strings.TrimPrefix(imagePath, "/k8s")+image.Name, "application/merge-patch+json", patch)
	assert.JSONEq(t, direct, forged.body, "word by word")

	assert.Equal(t, http.StatusOK, b.send(t, http.MethodGet, other.UIURL, imagePath+image.Name, "", "").status, "reading is a viewer's")
	me := b.whoAmI(t, other.UIURL)
	for _, p := range me.May {
		assert.Equal(t, p.Verb == "get" && p.Resource == "fleet", p.Allowed, "%s %s", p.Verb, p.Resource)
	}
	require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(image), image))
	assert.Equal(t, "2.1.0", image.Spec.Version)
}

// sendDirectly sends a request to the API server with a token, and returns the answer.
func sendDirectly(t *testing.T, token, method, path, contentType, body string) string {
	t.Helper()
	cfg := rest.AnonymousClientConfig(shared.Plane.Config())
	cfg.BearerToken = token
	c, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	request, err := http.NewRequestWithContext(t.Context(), method, cfg.Host+path, strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", contentType)
	response, err := c.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(text)
}

func approvalPatch(by string) string {
	return `{"spec":{"approvals":[{"wave":"edge","version":"2.1.0","by":"` + by + `"}]}}`
}

// TestApprovalIsStoredInThePersonsName shows that admission sees the person who approves, with a
// pasted token and with one that a proxy puts in, and that nobody approves in another's name.
func TestApprovalIsStoredInThePersonsName(t *testing.T) {
	elected, other := shared.electedAndOther(t)
	token := shared.issueToken(t, approver, readers, approvers)
	pasted := newBrowser(t)
	requireSignedIn(t, pasted.login(t, elected.UIURL, token))
	proxied := newBrowser(t)
	proxied.authorization = token
	for name, b := range map[string]*browser{"pasted": pasted, "proxied": proxied} {
		t.Run(name, func(t *testing.T) {
			image := newFleetImage("approved-" + name)
			shared.CreateForTest(t, image)
			inOthersName := b.send(t, http.MethodPatch, other.UIURL, imagePath+image.Name, "application/merge-patch+json", approvalPatch(viewer))
			assert.Equal(t, http.StatusForbidden, inOthersName.status, inOthersName.body)
			assert.Contains(t, inOthersName.body, "ValidatingAdmissionPolicy 'ot-hub-approvals'")
			own := b.send(t, http.MethodPatch, other.UIURL, imagePath+image.Name, "application/merge-patch+json", approvalPatch(approver))
			assert.Equal(t, http.StatusOK, own.status, own.body)
			stored := &v1alpha1.FleetDiskImage{}
			require.NoError(t, shared.Get(t.Context(), client.ObjectKeyFromObject(image), stored))
			require.Len(t, stored.Spec.Approvals, 1)
			assert.Equal(t, approver, stored.Spec.Approvals[0].By)
		})
	}
}

// TestWithoutTheRightToRead shows that a person without it is told who has it, and gets no cookie.
func TestWithoutTheRightToRead(t *testing.T) {
	elected, other := shared.electedAndOther(t)
	token := shared.issueToken(t, stranger, viewers)
	b := newBrowser(t)
	a := b.login(t, elected.UIURL, token)
	assert.Equal(t, http.StatusForbidden, a.status)
	assert.Equal(t, stranger+" may not get "+summaryPath+": that takes ClusterRole ot-hub-reader, by a ClusterRoleBinding", errorOf(t, a))
	assert.Empty(t, a.header.Values("Set-Cookie"))
	b.authorization = token
	a = b.get(t, other.UIURL, "/fleet/v1/members")
	assert.Equal(t, http.StatusForbidden, a.status)
	assert.Equal(t, stranger+" may not get /fleet/v1/members: that takes ClusterRole ot-hub-reader, by a ClusterRoleBinding", errorOf(t, a))
	assert.Equal(t, stranger, b.whoAmI(t, other.UIURL).User, "who they are, they may know")
}

// TestTokenThatHasEnded shows that a token ends where it says so: pasted, in a cookie and in a header.
func TestTokenThatHasEnded(t *testing.T) {
	elected, other := shared.electedAndOther(t)
	ended, err := shared.provider.Token(viewer, -time.Minute, readers)
	require.NoError(t, err)
	b := newBrowser(t)
	a := b.login(t, elected.UIURL, ended)
	assert.Equal(t, http.StatusUnauthorized, a.status)
	assert.Equal(t, "the API server does not accept the token: it is unknown or has ended", errorOf(t, a))
	guessed := b.login(t, elected.UIURL, "guessed")
	assert.Equal(t, a.body, guessed.body, "the answer is the same")
	proxied := newBrowser(t)
	proxied.authorization = ended
	for _, path := range []string{summaryPath, "/auth/me", imagePath + "any"} {
		assert.Equal(t, http.StatusUnauthorized, proxied.get(t, other.UIURL, path).status, path)
	}

	short, err := shared.provider.Token(viewer, time.Minute, readers)
	require.NoError(t, err)
	requireSignedIn(t, b.login(t, elected.UIURL, short))
	proxied.authorization = short
	end := proxied.whoAmI(t, other.UIURL).ExpiresAt
	require.Equal(t, http.StatusOK, proxied.get(t, other.UIURL, summaryPath).status)
	require.True(t, testenv.AwaitCondition(t, func() bool { return !time.Now().Before(end.Time) }))
	for _, path := range []string{summaryPath, "/auth/me"} {
		assert.Equal(t, http.StatusUnauthorized, b.get(t, other.UIURL, path).status, "the cookie outlives the token: %s", path)
		assert.Equal(t, http.StatusUnauthorized, proxied.get(t, other.UIURL, path).status, "what is remembered of it outlives the token: %s", path)
	}
}

// TestProxyInFront shows that the ID token of a sign-in proxy says who somebody is, and that what it
// or a browser says besides is not believed.
func TestProxyInFront(t *testing.T) {
	elected, other := shared.electedAndOther(t)
	tokens := map[string]string{viewer: shared.issueToken(t, viewer, readers, viewers), approver: shared.issueToken(t, approver, readers, approvers)}
	for _, behind := range []*program.Hub{elected, other} {
		proxy, err := oidc.StartProxy(behind.UIURL, func(request *http.Request) string {
			session, err := request.Cookie("proxy-session")
			if err != nil {
				return ""
			}
			return tokens[session.Value]
		})
		require.NoError(t, err)
		t.Cleanup(proxy.Close)
		for person := range tokens {
			b := newBrowser(t)
			signInAtProxy(t, b, proxy, person)
			me := b.whoAmI(t, proxy.URL)
			assert.Equal(t, person, me.User)
			assert.Equal(t, ui.ModeProxy, me.Mode)
			assert.False(t, me.SignOut, "the proxy holds the session")
			assert.Contains(t, me.Groups, readers)
			assert.Equal(t, http.StatusOK, b.get(t, proxy.URL, summaryPath).status)
			image := newFleetImage("proxied")
			require.NoError(t, shared.Create(t.Context(), image))
			a := b.send(t, http.MethodPatch, proxy.URL, imagePath+image.Name, "application/merge-patch+json", `{"spec":{"rollout":{"paused":true}}}`)
			require.NoError(t, shared.Delete(context.WithoutCancel(t.Context()), image))
			shared.AwaitGone(t, image)
			want := http.StatusForbidden
			if person == approver {
				want = http.StatusOK
			}
			assert.Equal(t, want, a.status, a.body)
		}
		nobody := newBrowser(t)
		assert.Equal(t, http.StatusUnauthorized, nobody.get(t, proxy.URL, summaryPath).status)
		requireNotBelieved(t, nobody, proxy.URL)
	}
}

func signInAtProxy(t *testing.T, b *browser, proxy *httptest.Server, person string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, proxy.URL, nil)
	require.NoError(t, err)
	b.Jar.SetCookies(request.URL, []*http.Cookie{{Name: "proxy-session", Value: person, Path: "/", Secure: true}})
}

// requireNotBelieved sends headers by which some programs let a proxy say who somebody is.
func requireNotBelieved(t *testing.T, b *browser, origin string) {
	t.Helper()
	for _, path := range []string{"/auth/me", summaryPath, imagePath + "any"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, origin+path, nil)
		require.NoError(t, err)
		for name, value := range map[string]string{
			"X-Remote-User": "admin", "X-Remote-Group": "system:masters", "X-Forwarded-User": "admin", "X-Forwarded-Groups": "system:masters",
			"X-Auth-Request-User": "admin", "Impersonate-User": "admin", "Impersonate-Group": "system:masters",
		} {
			request.Header.Set(name, value)
		}
		response, err := b.Do(request)
		require.NoError(t, err)
		assert.Equal(t, http.StatusUnauthorized, response.StatusCode, path)
		var e struct{ Error string }
		require.NoError(t, json.NewDecoder(response.Body).Decode(&e))
		_ = response.Body.Close()
	}
}
