package web

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func (a *API) listMembers(request *http.Request) (any, error) {
	query := request.URL.Query()
	q := answers.MemberQuery{After: query.Get("after")}
	l, err := parseListing(request, readapi.MemberOrders()...)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Offset, q.Search, q.Sort, q.Descending = l.limit, l.offset, l.search, l.sort, l.descending
	states := []string{readapi.StateUnknown}
	for _, state := range readapi.AllMemberStates() {
		states = append(states, string(state))
	}
	if q.State, err = parseChoice(request, "state", states...); err != nil {
		return nil, err
	}
	if q.After != "" && (q.Descending || q.Offset > 0 || q.Sort != "" && q.Sort != readapi.MembersByName) {
		return nil, httpError{http.StatusBadRequest, "after is for a list by name: page through others by offset"}
	}
	if q.After != "" && len(validation.IsDNS1123Subdomain(q.After)) > 0 {
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("after=%s: must be the name of a member, as next of a list", v1alpha1.Truncate(q.After, maxKeyBytes))}
	}
	if q.Selector, err = parseSelector(query.Get("selector")); err != nil {
		return nil, err
	}
	var stored v1alpha1.MemberClusterList
	if err := a.list(request.Context(), &stored); err != nil {
		return nil, err
	}
	return answers.ListMembers(a.Index.Members(), stored.Items, q), nil
}

func (a *API) getMember(request *http.Request) (any, error) {
	name := request.URL.Query().Get("member")
	if name == "" {
		return nil, httpError{http.StatusBadRequest, "member is required: a member from /fleet/v1/members"}
	}
	m, err := a.readMember(request.Context(), name)
	if err != nil {
		return nil, err
	}
	summary := readapi.MemberSummary{Member: name, Unknown: m.Unknown}
	if totals, known := a.Index.Totals(name); known {
		summary.Counts = totals.Counts
	}
	return answers.DescribeMember(m, summary), nil
}

// readMember reads what is known of a member.
func (a *API) readMember(ctx context.Context, name string) (*answers.MemberImage, error) {
	m := &answers.MemberImage{Member: &v1alpha1.MemberCluster{}, Grant: &v1alpha1.TransferGrant{}, Policy: a.Policy(), Now: a.now()}
	err := a.Members.Get(ctx, client.ObjectKey{Name: name}, m.Member)
	switch {
	case apierrors.IsNotFound(err):
		return nil, notFound("MemberCluster", name)
	case err != nil:
		return nil, fmt.Errorf("reading MemberCluster %s: %w", v1alpha1.Truncate(name, maxKeyBytes), err)
	}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + name, Name: v1alpha1.MailboxName}
	if err := a.Members.Get(ctx, key, m.Grant); err != nil {
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading TransferGrant %s: %w", key, err)
		}
		m.Grant = nil
	}
	m.Unknown, m.Activity = a.Index.UnknownReason(name), a.Index.Activity(name)
	m.Root, m.ReceivedAt = a.Root(name)
	return m, nil
}
