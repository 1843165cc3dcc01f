package command

import (
	"context"
	"errors"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// listReported returns the images that a member has reported: of its ClusterReports, which
// administrators may read, else of the read API. There are none of a member that this has not seen yet.
func (e *environment) listReported(ctx context.Context, hub *connect.Cluster, member string) ([]v1alpha1.ReportedImage, error) {
	if !e.reportsForbidden {
		var reports v1alpha1.ClusterReportList
		err := hub.List(ctx, &reports, client.InNamespace(v1alpha1.MemberNamespacePrefix+member))
		if !apierrors.IsForbidden(err) {
			return rollout.ListReported(reports.Items), err
		}
		e.reportsForbidden = true
	}
	var images []v1alpha1.ReportedImage
	unread, err := e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) error {
		images = nil
		for page := ""; ; {
			list, err := api.MemberImages(ctx, member, page)
			if err != nil {
				return err
			}
			images = append(images, list.Images...)
			if list.Next == "" || list.Next == page {
				return nil
			}
			page = list.Next
		}
	})
	switch {
	case unread != "":
		return nil, errors.New("what clusters report cannot be read. " + unread)
	case errors.Is(err, readapi.ErrNotFound):
		return nil, nil
	}
	return images, err
}

// gatherWhere asks the read API once for each version, and for the clusters in which one is planned and
// absent; else it reads the reports of each cluster.
func (e *environment) gatherWhere(ctx context.Context, hub *connect.Cluster, where *rollout.Where, img *v1alpha1.FleetDiskImage) error {
	// With overrides, clusters have a version of many sources: what they report of it is read by name.
	isUnlike := len(img.Spec.Overrides) > 0 || slices.ContainsFunc(img.Status.Versions, func(v v1alpha1.VersionStatus) bool { return v.Overrides != nil })
	unread, err := e.askReadAPI(ctx, hub, func(api *connect.ReadAPI) error {
		if isUnlike {
			return fillWhereByName(ctx, api, where, img.Name, "")
		}
		// An image that is planned and absent has no source yet. Those are asked for first: one that is
		// created meanwhile has its source afterwards.
		if err := fillWhereByName(ctx, api, where, img.Name, readapi.ImagePlanned); err != nil {
			return err
		}
		return fillWhere(ctx, api, where, img)
	})
	if errors.Is(err, readapi.ErrNotFound) {
		unread, err = notSeenYet, nil
	}
	if err == nil && unread == "" && isUnlike {
		return nil
	}
	if err != nil || unread == "" {
		where.NoteVersionsWithoutTemplate(img)
		return err
	}
	for i := range where.Clusters {
		c := &where.Clusters[i]
		reported, err := e.listReported(ctx, hub, c.Cluster)
		if err != nil {
			return err
		}
		c.Read(img, reported)
	}
	return nil
}

// fillWhere asks the read API where each version is, one request a version.
func fillWhere(ctx context.Context, api *connect.ReadAPI, where *rollout.Where, img *v1alpha1.FleetDiskImage) error {
	for i := range img.Status.Versions {
		v := &img.Status.Versions[i]
		if v.Template == nil {
			continue
		}
		detail, err := api.ImageDetail(ctx, v.Template.RedactedSource())
		if failed, ok := errors.AsType[*readapi.Error](err); ok && failed.Status == http.StatusNotFound {
			continue // no cluster has it
		}
		if err != nil {
			return err
		}
		for j := range detail.PerMember {
			for _, entry := range detail.PerMember[j].Entries {
				if entry.Namespace == v.Namespace && entry.Name == v.Image {
					where.Put(detail.PerMember[j].Member, v.Version, rollout.InIt{Phase: entry.Phase, Reason: entry.Reason, References: entry.References})
				}
			}
		}
	}
	return nil
}

// fillWhereByName asks the read API what clusters have of a FleetDiskImage, a page at a time: those that
// have a version in a state, or all for "". The hub reads the reports of each.
func fillWhereByName(ctx context.Context, api *connect.ReadAPI, where *rollout.Where, name string, state readapi.ImageState) error {
	for offset := 0; ; {
		list, err := api.ImageClusters(ctx, name, state, offset)
		if err != nil {
			return err
		}
		for i := range list.Clusters {
			c := &list.Clusters[i]
			for _, v := range c.Versions {
				if r := v.Reported; r != nil {
					where.Put(c.Cluster, v.Version, rollout.NewInIt(r))
				}
			}
		}
		if offset += len(list.Clusters); len(list.Clusters) == 0 || offset >= list.Total {
			return nil
		}
	}
}
