package web

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
)

func (a *API) explainImage(request *http.Request) (any, error) {
	ctx, query := request.Context(), request.URL.Query()
	m := answers.MemberImage{
		Namespace: query.Get("namespace"), Name: query.Get("name"), Member: &v1alpha1.MemberCluster{}, Grant: &v1alpha1.TransferGrant{},
		Policy: a.Policy(), Now: a.now(),
	}
	cluster := query.Get("cluster")
	if cluster == "" || m.Namespace == "" || m.Name == "" {
		return nil, httpError{http.StatusBadRequest, "cluster, namespace and name are required: a member, and the namespace and name of a VMDiskImage there"}
	}
	err := a.Members.Get(ctx, client.ObjectKey{Name: cluster}, m.Member)
	switch {
	case apierrors.IsNotFound(err):
		return nil, notFound("MemberCluster", cluster)
	case err != nil:
		return nil, fmt.Errorf("reading MemberCluster %s: %w", v1alpha1.Truncate(cluster, maxKeyBytes), err)
	}
	key := client.ObjectKey{Namespace: v1alpha1.MemberNamespacePrefix + cluster, Name: v1alpha1.MailboxName}
	if err := a.Members.Get(ctx, key, m.Grant); err != nil {
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("reading TransferGrant %s: %w", key, err)
		}
		m.Grant = nil
	}
	m.Unknown, m.Activity = a.Index.UnknownReason(cluster), a.Index.Activity(cluster)
	m.Root, m.ReceivedAt = a.Root(cluster)
	if m.Image, err = a.findImage(request, cluster, m.Namespace, m.Name); err != nil {
		return nil, err
	}
	if m.Image == nil && m.Unknown == "" {
		return nil, httpError{http.StatusNotFound, fmt.Sprintf("member %s reports no VMDiskImage %s/%s, and no plan of it: the hub's FleetDiskImages say what it will get",
			cluster, v1alpha1.Truncate(m.Namespace, maxKeyBytes), v1alpha1.Truncate(m.Name, maxKeyBytes))}
	}
	return answers.ExplainImage(&m), nil
}

// findImage returns an image as a member reports it; nil for none.
func (a *API) findImage(request *http.Request, cluster, namespace, name string) (*v1alpha1.ReportedImage, error) {
	page, found := a.Index.PageOf(cluster, namespace, name)
	if !found {
		return nil, nil
	}
	images, _, err := a.Pages.Page(request.Context(), cluster, page)
	if err != nil {
		return nil, err
	}
	for i := range images {
		if images[i].Namespace == namespace && images[i].Name == name {
			return &redactImages(images[i : i+1])[0], nil
		}
	}
	return nil, nil // gone since
}
