//go:build linux

package hub

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/fleet"
	"github.com/pelotech/ot-fleet/hub/web"
)

// reader reads what a hub serves, with the rights of whom the token is of.
type reader struct {
	hub    *Hub
	token  string
	client *http.Client
}

func newReader(h *Hub, token string) *reader {
	// The certificate is of the hub's own making.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	return &reader{hub: h, token: token, client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

func (r *reader) get(ctx context.Context, url string) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	if r.token != "" {
		request.Header.Set("Authorization", "Bearer "+r.token)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrNotServed, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// Get asks the read API for a path, with its query, and decodes the answer.
func (h *Hub) Get(ctx context.Context, path string, into any) error {
	status, body, err := h.reader.get(ctx, h.APIURL+path)
	switch {
	case err != nil:
		return err
	case status == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", ErrNotServed, body)
	case status != http.StatusOK:
		return fmt.Errorf("reading %s%s: status %d: %s", h.APIURL, path, status, body)
	}
	return json.Unmarshal(body, into)
}

// Text asks the read API for a path, with its query, and returns the answer as it is.
func (h *Hub) Text(ctx context.Context, path string) (string, error) {
	status, body, err := h.reader.get(ctx, h.APIURL+path)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", fmt.Errorf("reading %s%s: status %d: %s", h.APIURL, path, status, body)
	}
	return string(body), nil
}

// Status asks for a path as whom a token is of, "" for nobody, and returns the
// status of the answer.
func (h *Hub) Status(ctx context.Context, path, token string) (int, error) {
	status, _, err := newReader(h, token).get(ctx, h.APIURL+path)
	return status, err
}

// Members are all members as the read API tells them.
func (h *Hub) Members(ctx context.Context) ([]web.Member, error) {
	var all []web.Member
	for after := ""; ; {
		var list web.MemberList
		if err := h.Get(ctx, "/fleet/v1/members?after="+url.QueryEscape(after), &list); err != nil {
			return nil, err
		}
		all = append(all, list.Members...)
		if after = list.Next; after == "" {
			return all, nil
		}
	}
}

// Images are all distinct images as the read API tells them.
func (h *Hub) Images(ctx context.Context) ([]fleet.Image, error) {
	var all []fleet.Image
	for after := ""; ; {
		var list web.ImageList
		if err := h.Get(ctx, "/fleet/v1/images?after="+url.QueryEscape(after), &list); err != nil {
			return nil, err
		}
		all = append(all, list.Images...)
		if after = list.Next; after == "" {
			return all, nil
		}
	}
}

// Image is one distinct image as the read API tells it.
func (h *Hub) Image(ctx context.Context, source string) (detail fleet.ImageDetail, err error) {
	return detail, h.Get(ctx, "/fleet/v1/images/detail?source="+url.QueryEscape(source), &detail)
}

// Rollout is a FleetDiskImage as the read API tells it; the zero value where it
// tells of none of that name.
func (h *Hub) Rollout(ctx context.Context, name string) (web.Rollout, error) {
	for after := ""; ; {
		var list web.RolloutList
		if err := h.Get(ctx, "/fleet/v1/rollouts?after="+url.QueryEscape(after), &list); err != nil {
			return web.Rollout{}, err
		}
		for i := range list.Rollouts {
			if list.Rollouts[i].Name == name {
				return list.Rollouts[i], nil
			}
		}
		if after = list.Next; after == "" {
			return web.Rollout{}, nil
		}
	}
}

// RolloutClusters are all clusters that a FleetDiskImage is placed in as the read
// API tells them, in small pages; with a state, those that are in it.
func (h *Hub) RolloutClusters(ctx context.Context, name string, state v1alpha1.ClusterState) ([]web.RolloutCluster, error) {
	var all []web.RolloutCluster
	query := "/fleet/v1/rollouts/clusters?limit=2&name=" + url.QueryEscape(name) + "&state=" + url.QueryEscape(string(state))
	for after := ""; ; {
		var list web.RolloutClusters
		if err := h.Get(ctx, query+"&after="+url.QueryEscape(after), &list); err != nil {
			return nil, err
		}
		all = append(all, list.Clusters...)
		if after = list.Next; after == "" {
			return all, nil
		}
	}
}

// MemberImages is one page of a member's report as the read API tells it; the
// first for "".
func (h *Hub) MemberImages(ctx context.Context, member, page string) (images web.MemberImages, err error) {
	return images, h.Get(ctx, "/fleet/v1/members/images?member="+url.QueryEscape(member)+"&page="+url.QueryEscape(page), &images)
}

// Metrics reads the hub's metrics, as text. It waits until they are served, which a
// hub that has ended does no more.
func (h *Hub) Metrics(ctx context.Context) (string, error) {
	var text string
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := h.Ended(); err != nil {
			return false, err
		}
		status, body, err := h.reader.get(ctx, h.MetricsURL)
		text = string(body)
		return err == nil && status == http.StatusOK && strings.Contains(text, "ot_hub_"), nil
	})
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", h.MetricsURL, err)
	}
	return text, nil
}
