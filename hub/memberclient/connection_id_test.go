package memberclient

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// The state names the connection that was tried, not the one that is asked for.
func TestStateNamesTheTriedConnection(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(emptyMailbox))
	defer server.Close()
	defer server.CloseClientConnections()
	asked := make(chan struct{}, 100)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer silent.Close()
	defer silent.CloseClientConnections()

	changes := make(chan string, 1000)
	p := New(Options{ProbeInterval: 50 * time.Millisecond})
	p.OnChange(func(name string) { changes <- name })
	set := func(host, id string) {
		p.SetTarget("edge", Target{Config: &rest.Config{Host: host}, Namespace: "ot-agent", ConfigVersion: host, ConnectionID: id})
	}
	await := func(done func(State) bool) {
		t.Helper()
		for deadline := time.After(time.Minute); !done(p.State("edge")); {
			select {
			case <-changes:
			case <-deadline:
				require.Fail(t, "it does not happen", "%+v", p.State("edge"))
			}
		}
	}
	set(server.URL, "first")
	require.Empty(t, p.State("edge").ConnectionID, "nothing was tried")
	go func() { _ = p.Runnable(ignoreEngaged{}).Start(t.Context()) }()
	await(func(s State) bool { return s.Reachable && s.ConnectionID == "first" })
	m, err := p.GetMember("edge")
	require.NoError(t, err)
	require.Equal(t, "first", p.ConnectionID("edge", m))

	set(server.URL, "renamed")
	require.Equal(t, "renamed", p.State("edge").ConnectionID, "the same connection serves")
	await(func(s State) bool { return s.Reachable && s.ConnectionID == "renamed" })
	require.Equal(t, "renamed", p.ConnectionID("edge", m))

	set(silent.URL, "second")
	<-asked
	state := p.State("edge")
	require.True(t, state.Reachable && state.ConnectionID == "renamed", "the second has not answered yet: %+v", state)
	require.Empty(t, p.ConnectionID("edge", m), "it was replaced")
	set(silent.URL, "third")
	require.Equal(t, "renamed", p.State("edge").ConnectionID, "the same server, not tried either")
	require.False(t, p.KeepConnection("edge", "third", "a note"), "it was never reached")

	p.SetUnreachable("edge", "fourth", "CredentialsMissing", "no Secret")
	state = p.State("edge")
	require.True(t, state.Known && !state.Reachable && state.ConnectionID == "fourth", "%+v", state)
	set(server.URL, "fifth")
	await(func(s State) bool { return s.Reachable && s.ConnectionID == "fifth" })
	require.True(t, p.KeepConnection("edge", "fifth", "a note"))
	require.False(t, p.KeepConnection("edge", "sixth", "a note"))
}
