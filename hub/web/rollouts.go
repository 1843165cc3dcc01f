package web

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/ownership"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

func (a *API) listRollouts(request *http.Request) (any, error) {
	query := request.URL.Query()
	q := answers.RolloutQuery{After: query.Get("after")}
	l, err := parseListing(request, readapi.RolloutOrders()...)
	if err != nil {
		return nil, err
	}
	q.Limit, q.Offset, q.Search, q.Sort, q.Descending = l.limit, l.offset, l.search, l.sort, l.descending
	if q.Phase, err = parseChoice(request, "phase", readapi.RolloutsInAttention, string(v1alpha1.RolloutWaiting), string(v1alpha1.RolloutProgressing),
		string(v1alpha1.RolloutSucceeded), string(v1alpha1.RolloutFailed)); err != nil {
		return nil, err
	}
	if q.After != "" && (q.Sort != "" && q.Sort != readapi.RolloutsByName || q.Descending) {
		return nil, httpError{http.StatusBadRequest, "after is a name, and needs the order by name: use offset"}
	}
	var stored v1alpha1.FleetDiskImageList
	if err := a.list(request.Context(), &stored); err != nil {
		return nil, err
	}
	return answers.ListRollouts(stored.Items, q), nil
}

// findRollout returns the view of the FleetDiskImage that a request names.
func (a *API) findRollout(request *http.Request) (*rollout.View, error) {
	name := request.URL.Query().Get("name")
	if name == "" {
		return nil, httpError{http.StatusBadRequest, "name is required: a name from /fleet/v1/rollouts"}
	}
	v, found := a.RolloutView(name)
	if !found {
		return nil, notFound("FleetDiskImage", name)
	}
	return &v, nil
}

func (a *API) getRollout(request *http.Request) (any, error) {
	v, err := a.findRollout(request)
	if err != nil {
		return nil, err
	}
	return answers.DescribeRollout(v), nil
}

func (a *API) getReach(request *http.Request) (any, error) {
	wave := request.URL.Query().Get("wave")
	v, err := a.findRollout(request)
	switch {
	case err != nil:
		return nil, err
	case wave == "":
		return nil, httpError{http.StatusBadRequest, "wave is required: a wave of the FleetDiskImage"}
	}
	bytes, err := a.downloadBytes(request, v)
	if err != nil {
		return nil, err
	}
	reach, found := answers.DescribeReach(v, wave, bytes)
	if !found {
		return nil, httpError{http.StatusNotFound, fmt.Sprintf("FleetDiskImage %s has no wave %s", v.Image.Name, v1alpha1.Truncate(wave, maxKeyBytes))}
	}
	return reach, nil
}

// getRolloutOwners reads the FleetDiskImage itself: the cache does not know who has its fields.
func (a *API) getRolloutOwners(request *http.Request) (any, error) {
	name := request.URL.Query().Get("name")
	if name == "" {
		return nil, httpError{http.StatusBadRequest, "name is required: a name from /fleet/v1/rollouts"}
	}
	img := &v1alpha1.FleetDiskImage{}
	err := a.Live.Get(request.Context(), client.ObjectKey{Name: name}, img)
	switch {
	case apierrors.IsNotFound(err):
		return nil, notFound("FleetDiskImage", name)
	case err != nil:
		return nil, fmt.Errorf("reading FleetDiskImage %s: %w", v1alpha1.Truncate(name, maxKeyBytes), err)
	}
	ownerOf := func(field string) string {
		if owner := ownership.FindOwner(img, field); owner != nil {
			return v1alpha1.SanitizeText(owner.String(), maxKeyBytes)
		}
		return ""
	}
	return readapi.RolloutOwners{Approvals: ownerOf("spec.approvals"), Paused: ownerOf("spec.rollout.paused"), Retry: ownerOf("spec.retry")}, nil
}

// maxAskedMembers bounds the members whose reports are read for the size of a download.
const maxAskedMembers = 5

// downloadBytes returns the size of the download of a rollout's version, as clusters say that
// have it; 0 where none does. It is the median: no single member decides. A size is unknown
// where the report cannot be read, or has the disk's size, which agents take where the source
// gives none.
func (a *API) downloadBytes(request *http.Request, v *rollout.View) (int64, error) {
	var sizes []int64
	asked := 0
	image, diskBytes := rollout.CurrentImage(v.Image), v.Image.Spec.Template.DiskSize.Value()
	for i := range v.Clusters {
		c := &v.Clusters[i]
		if asked == maxAskedMembers {
			break
		}
		if !c.Report.Exists || c.Report.Phase != v1alpha1.PhaseSucceeded || c.Report.Revision != c.PlannedRevision {
			continue
		}
		asked++
		reported, err := a.findImage(request, c.Name, image.Namespace, image.Name)
		if err != nil {
			if request.Context().Err() != nil {
				return 0, err // others would get an answer without sizes that are known
			}
			log.FromContext(request.Context()).Info("Failed to read the size of a download; counting it as unknown", "member", c.Name, "image", image.String(), "error", err.Error())
			continue
		}
		if reported != nil && reported.DownloadBytes > 0 && reported.DownloadBytes != diskBytes {
			sizes = append(sizes, reported.DownloadBytes)
		}
	}
	if len(sizes) == 0 {
		return 0, nil
	}
	slices.Sort(sizes)
	return sizes[(len(sizes)-1)/2], nil
}

func (a *API) listRolloutClusters(request *http.Request) (any, error) {
	limit, err := parseLimit(request)
	if err != nil {
		return nil, err
	}
	query := request.URL.Query()
	state := v1alpha1.ClusterState(query.Get("state"))
	if state != "" && !slices.Contains(v1alpha1.ClusterStates(), state) {
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("state=%s: must be one of %s", state, joinValues(v1alpha1.ClusterStates()))}
	}
	v, err := a.findRollout(request)
	if err != nil {
		return nil, err
	}
	offset, err := parseOffset(request)
	if err != nil {
		return nil, err
	}
	return answers.ListRolloutClusters(v, answers.RolloutClusterQuery{State: state, Wave: query.Get("wave"), After: query.Get("after"), Offset: offset, Limit: limit}), nil
}

func joinValues[T ~string](states []T) string {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	return strings.Join(names, ", ")
}

// pageAfter returns the items of a sorted list that follow a name, up to limit, and the
// name of the last one where more follow.
func pageAfter[T any](all []T, name string, limit int, nameOf func(T) string) (page []T, next string) {
	from, found := slices.BinarySearchFunc(all, name, func(item T, name string) int { return strings.Compare(nameOf(item), name) })
	if found {
		from++
	}
	to := min(len(all), from+limit)
	if to < len(all) {
		next = nameOf(all[to-1])
	}
	return all[from:to], next
}
