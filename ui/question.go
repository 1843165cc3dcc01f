package ui

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/url"

	"github.com/pelotech/ot-fleet/api/readapi"
)

// longQuestions are the paths whose parameters may be too long for an address: a whole policy, and
// the names of a prune. Proxies in front refuse addresses of more than a few KiB.
var longQuestions = map[string]bool{readapi.Root + "blastradius": true, readapi.Root + "prunereports/groups": true}

// toRead returns a request of the read API as the read that it is. A long question comes as the body
// of a POST, an object of its parameters.
//
// Invariant: the read API is asked by GET alone, so that nobody needs another right to read.
func toRead(request *http.Request) (*http.Request, error) {
	if isRead(request.Method) {
		return request, nil
	}
	if request.Method != http.MethodPost || !longQuestions[request.URL.Path] {
		return nil, newRefusal(http.StatusMethodNotAllowed, "the read API is read-only: use GET")
	}
	if request.URL.RawQuery != "" {
		return nil, newRefusal(http.StatusBadRequest, "the parameters are the body, or the query")
	}
	if given, _, err := mime.ParseMediaType(request.Header.Get("Content-Type")); err != nil || given != jsonType {
		return nil, newRefusal(http.StatusUnsupportedMediaType, "Content-Type must be "+jsonType)
	}
	body, err := readBody(request)
	if err != nil {
		return nil, err
	}
	var parameters map[string]string
	if err := json.Unmarshal(body, &parameters); err != nil {
		return nil, newRefusal(http.StatusBadRequest, "the body is no object of parameters, which are texts")
	}
	query := make(url.Values, len(parameters))
	for name, value := range parameters {
		query.Set(name, value)
	}
	read := request.Clone(request.Context())
	read.Method, read.URL.RawQuery = http.MethodGet, query.Encode()
	read.RequestURI = read.URL.RequestURI()
	read.Body, read.ContentLength, read.TransferEncoding = http.NoBody, 0, nil
	for _, name := range []string{"Content-Type", "Content-Length", "If-None-Match"} {
		read.Header.Del(name)
	}
	return read, nil
}
