//go:build linux

package hostilemember_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/fleet"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

const agentNamespace = "ot-agent"

// lane is one hostile member. Each of its cases is served below a path of its own, which the
// member's kubeconfig names: so each case begins with a new connection, and late requests of
// the case before are none of it.
type lane struct {
	member  string
	cluster *scriptedCluster
	server  *httptest.Server
	beating context.CancelFunc

	mu    sync.Mutex
	uses  int
	cases map[string]*hostileCase // by first element of the path
}

func startLane(ctx context.Context, f *fleet.Fleet, n int) (*lane, error) {
	name := fmt.Sprintf("hostile-%d", n)
	l := &lane{member: name, cluster: newScriptedCluster("scripted-" + name), cases: map[string]*hostileCase{}}
	l.server = newServer(http.HandlerFunc(l.answerRequest), true, trusted.certificate(time.Now().Add(time.Hour), "127.0.0.1"))
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.beating = stop
	go func() {
		ticker := time.NewTicker(5 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-running.Done():
				return
			case <-ticker.C:
				l.cluster.heartbeat()
			}
		}
	}()
	if err := f.CreateMember(ctx, name, agentNamespace, nil, l.honestConfig()); err != nil {
		return l, err
	}
	return l, f.AwaitReady(ctx, name)
}

func (l *lane) stop() {
	l.beating()
	l.server.CloseClientConnections()
	l.server.Close()
}

// newServer starts a server of HTTPS, without a log of what clients do to it.
func newServer(handler http.Handler, version2 bool, certificate tls.Certificate) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = version2
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	return server
}

func (l *lane) answerRequest(w http.ResponseWriter, r *http.Request) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	r.URL.Path = "/" + rest
	l.mu.Lock()
	c := l.cases[first]
	l.mu.Unlock()
	switch {
	case c == nil:
		l.cluster.answerRequest(w, r, nil)
	case c.answer != nil && c.on.matches(parseOperation(r)):
		c.answer(w, r)
	default:
		l.cluster.answerRequest(w, r, c.lie)
	}
}

func (l *lane) honestConfig() *rest.Config { return l.config("") }

// config returns how the hub reaches a case; nil for honest answers.
func (l *lane) config(prefix string) *rest.Config {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uses++
	if prefix == "" {
		prefix = fmt.Sprintf("honest-%d", l.uses)
	}
	return &rest.Config{Host: l.server.URL + "/" + prefix, BearerToken: "scripted", TLSClientConfig: rest.TLSClientConfig{CAData: trusted.pem}}
}

// beginCase has the hub meet a case.
func (l *lane) beginCase(t *testing.T, c *hostileCase) {
	t.Helper()
	if c.listen != nil {
		address := c.listen(t)
		cfg := l.config("listener")
		cfg.Host = "https://" + address
		require.NoError(t, shared.PutKubeconfig(t.Context(), l.member, cfg))
		return
	}
	l.mu.Lock()
	prefix := fmt.Sprintf("case-%d", l.uses)
	l.cases[prefix] = c
	l.mu.Unlock()
	require.NoError(t, shared.PutKubeconfig(t.Context(), l.member, l.config(prefix)))
}

// awaitNamed waits until a condition of the member says what is wrong with it.
func (l *lane) awaitNamed(t *testing.T, c *hostileCase) {
	t.Helper()
	var seen *v1alpha1.MemberCluster
	if !testenv.AwaitCondition(t, func() bool {
		seen = shared.GetMember(t, l.member)
		return c.isNamed(seen)
	}) {
		assert.Failf(t, "no condition names the case", "%s of %s: wanted %s with one of %q\n%s", c.name, l.member, c.condition, c.want, testenv.DescribeMember(seen))
	}
}

// restore has the hub meet an honest member again.
func (l *lane) restore(t *testing.T) {
	t.Helper()
	l.cluster.heartbeat()
	require.NoError(t, shared.PutKubeconfig(context.WithoutCancel(t.Context()), l.member, l.honestConfig()))
}

// awaitRestored waits until nothing of a case is left in the conditions.
func (l *lane) awaitRestored(t *testing.T) {
	t.Helper()
	shared.AwaitMember(t, l.member, "restored", func(m *v1alpha1.MemberCluster) bool {
		for _, condition := range []string{v1alpha1.ConditionReachable, v1alpha1.ConditionMailboxSynced, v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
			c := meta.FindStatusCondition(m.Status.Conditions, condition)
			if c == nil || c.Status != metav1.ConditionTrue || strings.Contains(c.Message, ";") {
				return false
			}
		}
		return true
	})
}

// listenTCP accepts connections, each of which serve gets to itself, until the test ends.
func listenTCP(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var mu sync.Mutex
	var open []net.Conn
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close()
		}
	})
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			go func() { serve(c) }()
		}
	}()
	return listener.Addr().String()
}
