//go:build linux

package program

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// apiReader reads what a hub serves, with the permissions of its token.
type apiReader struct {
	hub    *Hub
	token  string
	client *http.Client
}

func newAPIReader(h *Hub, token string) *apiReader {
	// The certificate is self-signed.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
	return &apiReader{hub: h, token: token, client: &http.Client{Transport: transport, Timeout: controlplane.Patience}}
}

// bearer adds a token to each request.
type bearer struct {
	token string
	http.RoundTripper
}

func (b bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(request)
}

// ReadAPI returns a client of the read API that this replica serves.
func (h *Hub) ReadAPI() (*readapi.Client, error) {
	return readapi.NewClient(h.APIURL, &http.Client{Transport: bearer{h.reader.token, h.reader.client.Transport}})
}

func (r *apiReader) getURL(ctx context.Context, url string) (status int, body []byte, err error) {
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

// GetJSON reads a path of the read API, with its query, and decodes the answer.
func (h *Hub) GetJSON(ctx context.Context, path string, into any) error {
	status, body, err := h.reader.getURL(ctx, h.APIURL+path)
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

// GetText reads a path of the read API, with its query.
func (h *Hub) GetText(ctx context.Context, path string) (string, error) {
	status, body, err := h.reader.getURL(ctx, h.APIURL+path)
	if err != nil {
		return "", err
	}
	if status != http.StatusOK {
		return "", fmt.Errorf("reading %s%s: status %d: %s", h.APIURL, path, status, body)
	}
	return string(body), nil
}

// GetStatus reads a path with a token, "" for none, and returns the HTTP status.
func (h *Hub) GetStatus(ctx context.Context, path, token string) (int, error) {
	status, _, err := newAPIReader(h, token).getURL(ctx, h.APIURL+path)
	return status, err
}

// ListMembers returns all members of the read API.
func (h *Hub) ListMembers(ctx context.Context) ([]readapi.Member, error) {
	var all []readapi.Member
	for after := ""; ; {
		var list readapi.MemberList
		if err := h.GetJSON(ctx, "/fleet/v1/members?after="+url.QueryEscape(after), &list); err != nil {
			return nil, err
		}
		all = append(all, list.Members...)
		if after = list.Next; after == "" {
			return all, nil
		}
	}
}

// ListImages returns all distinct images of the read API.
func (h *Hub) ListImages(ctx context.Context) ([]readapi.Image, error) {
	var all []readapi.Image
	for after := ""; ; {
		var list readapi.ImageList
		if err := h.GetJSON(ctx, "/fleet/v1/images?after="+url.QueryEscape(after), &list); err != nil {
			return nil, err
		}
		all = append(all, list.Images...)
		if after = list.Next; after == "" {
			return all, nil
		}
	}
}

// GetImage returns one distinct image of the read API.
func (h *Hub) GetImage(ctx context.Context, source string) (detail readapi.ImageDetail, err error) {
	return detail, h.GetJSON(ctx, "/fleet/v1/images/detail?source="+url.QueryEscape(source), &detail)
}

// GetRollout returns a FleetDiskImage of the read API; the zero value for none of that name.
func (h *Hub) GetRollout(ctx context.Context, name string) (readapi.Rollout, error) {
	for after := ""; ; {
		var list readapi.RolloutList
		if err := h.GetJSON(ctx, "/fleet/v1/rollouts?after="+url.QueryEscape(after), &list); err != nil {
			return readapi.Rollout{}, err
		}
		for i := range list.Rollouts {
			if list.Rollouts[i].Name == name {
				return list.Rollouts[i], nil
			}
		}
		if after = list.Next; after == "" {
			return readapi.Rollout{}, nil
		}
	}
}

// ListRolloutClusters returns the clusters of a FleetDiskImage that are in a state, all of
// them for "". It reads small pages.
func (h *Hub) ListRolloutClusters(ctx context.Context, name string, state v1alpha1.ClusterState) ([]readapi.RolloutCluster, error) {
	var all []readapi.RolloutCluster
	query := "/fleet/v1/rollouts/clusters?limit=2&name=" + url.QueryEscape(name) + "&state=" + url.QueryEscape(string(state))
	for after := ""; ; {
		var list readapi.RolloutClusters
		if err := h.GetJSON(ctx, query+"&after="+url.QueryEscape(after), &list); err != nil {
			return nil, err
		}
		all = append(all, list.Clusters...)
		if after = list.Next; after == "" {
			return all, nil
		}
	}
}

// GetMemberImages returns one page of a member's report of the read API; the first for "".
func (h *Hub) GetMemberImages(ctx context.Context, member, page string) (images readapi.MemberImages, err error) {
	return images, h.GetJSON(ctx, "/fleet/v1/members/images?member="+url.QueryEscape(member)+"&page="+url.QueryEscape(page), &images)
}

// ReadMetrics returns the hub's metrics as text. It waits until they are served and fails
// when the hub has exited.
func (h *Hub) ReadMetrics(ctx context.Context) (string, error) {
	var text string
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := h.ExitError(); err != nil {
			return false, err
		}
		status, body, err := h.reader.getURL(ctx, h.MetricsURL)
		text = string(body)
		return err == nil && status == http.StatusOK && strings.Contains(text, "ot_hub_"), nil
	})
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", h.MetricsURL, err)
	}
	return text, nil
}

// IsElected reports whether this replica is the elected one, by its metrics.
func (h *Hub) IsElected(ctx context.Context) (bool, error) {
	text, err := h.ReadMetrics(ctx)
	return strings.Contains(text, `leader_election_master_status{name="ot-hub"} 1`), err
}
