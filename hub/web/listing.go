package web

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// maxSearchBytes bounds what a list is searched for.
const maxSearchBytes = 128

// listing is which part of a list is asked for, and in which order. What is not asked for is zero.
type listing struct {
	limit, offset int
	search, sort  string
	descending    bool
}

// parseListing reads a listing, whose sort is one of orders.
func parseListing(request *http.Request, orders ...string) (l listing, err error) {
	if l.limit, err = parseLimit(request); err != nil {
		return l, err
	}
	if l.offset, err = parseOffset(request); err != nil {
		return l, err
	}
	if l.search, err = parseSearch(request, "search"); err != nil {
		return l, err
	}
	if l.sort, err = parseChoice(request, "sort", orders...); err != nil {
		return l, err
	}
	order, err := parseChoice(request, "order", readapi.OrderAscending, readapi.OrderDescending)
	l.descending = order == readapi.OrderDescending
	return l, err
}

// parseChoice returns a parameter that is one of a closed set; empty if it is not given.
func parseChoice(request *http.Request, name string, choices ...string) (string, error) {
	text := request.URL.Query().Get(name)
	if text != "" && !slices.Contains(choices, text) {
		return "", httpError{http.StatusBadRequest, fmt.Sprintf("%s=%s: must be one of %s", name, v1alpha1.Truncate(text, maxKeyBytes), strings.Join(choices, ", "))}
	}
	return text, nil
}

// parseSearch returns what a list is searched for; empty if it is not given.
func parseSearch(request *http.Request, name string) (string, error) {
	text := request.URL.Query().Get(name)
	if len(text) > maxSearchBytes {
		return "", httpError{http.StatusBadRequest, fmt.Sprintf("%s has %d bytes, and may have %d: give a part of a name", name, len(text), maxSearchBytes)}
	}
	return text, nil
}

// maxOffset bounds how far a list is paged through.
const maxOffset = 1_000_000

func parseOffset(request *http.Request) (int, error) {
	text := request.URL.Query().Get("offset")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxOffset {
		return 0, httpError{http.StatusBadRequest, fmt.Sprintf("offset=%s: must be a number from 0 to %d", v1alpha1.Truncate(text, maxKeyBytes), maxOffset)}
	}
	return n, nil
}
