package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxAnswerBytes bounds an answer of the API server.
const maxAnswerBytes = 2 << 20

var retryAfterPattern = regexp.MustCompile(`^[0-9]{1,5}$`)

// serverAnswer is an answer of the API server.
type serverAnswer struct {
	status     int
	body       []byte
	retryAfter string
}

// send sends a request to the API server. It follows no redirect: the credential is for this
// server alone. An answer that is not JSON is none of an API server.
func (c *Caller) send(ctx context.Context, r *objectRequest, body []byte) (*serverAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	target := *c.Server
	target.Path = strings.TrimRight(target.Path, "/") + r.path
	target.RawPath, target.RawQuery, target.Fragment = "", r.query.Encode(), ""
	request, err := http.NewRequestWithContext(ctx, r.method, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("asking the API server: %w", err)
	}
	request.Header.Set("Accept", jsonType)
	request.Header.Set("User-Agent", "ot-fleet-dashboard")
	if r.contentType != "" {
		request.Header.Set("Content-Type", r.contentType)
	}
	response, err := c.Transport.RoundTrip(request)
	if err != nil {
		return nil, newRefusal(http.StatusBadGateway, "the API server does not answer: "+v1alpha1.Truncate(err.Error(), maxErrorBytes/2))
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	switch mediaType, _, typeErr := mime.ParseMediaType(response.Header.Get("Content-Type")); {
	case err != nil:
		return nil, newRefusal(http.StatusBadGateway, "the answer of the API server ended early: whether a change was made is unknown")
	case len(text) > maxAnswerBytes:
		return nil, newRefusal(http.StatusBadGateway, fmt.Sprintf("the answer of the API server is larger than %d MiB", maxAnswerBytes>>20))
	case response.StatusCode == http.StatusUnauthorized:
		return nil, newRefusal(http.StatusUnauthorized, "the API server does not accept your credential: sign in again")
	case response.StatusCode < 200 || 300 <= response.StatusCode && response.StatusCode < 400, typeErr != nil || mediaType != jsonType || !json.Valid(text):
		return nil, newRefusal(http.StatusBadGateway, fmt.Sprintf("what answers for the API server is none: status %d, not JSON", response.StatusCode))
	}
	answer := &serverAnswer{status: response.StatusCode, body: text}
	if after := response.Header.Get("Retry-After"); retryAfterPattern.MatchString(after) {
		answer.retryAfter = after
	}
	return answer, nil
}

// review creates a review of the API server about the caller, and decodes the answer.
func (c *Caller) review(ctx context.Context, path string, question, into any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	answer, err := c.send(ctx, &objectRequest{method: http.MethodPost, path: path, query: url.Values{}, contentType: jsonType}, body)
	if err != nil {
		return err
	}
	if answer.status >= http.StatusBadRequest {
		return newRefusal(answer.status, fmt.Sprintf("the API server refuses to say what you may do: status %d", answer.status))
	}
	return json.Unmarshal(answer.body, into)
}
