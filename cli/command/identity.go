package command

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
)

// identityTimeout bounds the comparison of a context with the member that it is said to be: the hub may
// not be reached from where the member is.
const identityTimeout = 5 * time.Second

// ConnectMember connects to a member as Flags do. A --member-context that is another member of the hub
// than --cluster says is refused: the answer of one cluster would be shown as that of the other.
func (e *environment) ConnectMember(ctx context.Context, cluster string) (*connect.Cluster, error) {
	member, err := e.Flags.ConnectMember(cluster)
	if err != nil || cluster == "" || e.Member == "" || e.compared {
		return member, err
	}
	hub, err := e.Flags.ConnectHub()
	if err != nil {
		return member, nil //nolint:nilerr // the comparison needs a hub
	}
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	type comparison struct {
		isIt bool
		err  error
	}
	done := make(chan comparison, 1)
	go func() {
		isIt, err := checkIdentity(ctx, hub, member, cluster)
		done <- comparison{isIt, err}
	}()
	select {
	case c := <-done:
		if c.err != nil {
			return nil, c.err
		}
		e.identified = c.isIt
	case <-ctx.Done(): // discovery of the hub's kinds goes on, and is not waited for again
	}
	e.compared = true
	return member, nil
}

// connectToWrite connects to a member as ConnectMember does. A comparison that did not tell which member it
// is lets polls of -w go on; before a write it is made again.
func (e *environment) connectToWrite(ctx context.Context, cluster string) (*connect.Cluster, error) {
	e.compared = e.identified
	return e.ConnectMember(ctx, cluster)
}

// checkIdentity refuses a context that is another member than a cluster, and reports whether it is known to
// be that one. What may not be read, or is not there, refuses nothing. Its advice is one that each command
// can follow: some need a cluster.
func checkIdentity(ctx context.Context, hub, member *connect.Cluster, cluster string) (isIt bool, err error) {
	expected := &v1alpha1.MemberCluster{}
	if err := hub.Client.Get(ctx, client.ObjectKey{Name: cluster}, expected); err != nil || expected.Status.ClusterUID == "" {
		return false, nil //nolint:nilerr // see above
	}
	system := &corev1.Namespace{}
	if err := member.Client.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil || system.UID == expected.Status.ClusterUID {
		return err == nil, nil //nolint:nilerr // see above
	}
	is := "another cluster"
	var members v1alpha1.MemberClusterList
	if err := hub.List(ctx, &members); err == nil {
		for i := range members.Items {
			if members.Items[i].Status.ClusterUID == system.UID {
				is = "member " + members.Items[i].Name
			}
		}
	}
	return false, fmt.Errorf("--member-context %s: it is %s, not %s: name a context of %s", member.Context, is, cluster, cluster)
}
