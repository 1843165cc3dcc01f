package web

import (
	"bytes"
	"compress/gzip"
	"strconv"
	"strings"
)

const (
	// minCompressedBytes is what an answer must have to be worth compressing.
	minCompressedBytes = 1024
	// fastCompressionBytes is from where on less CPU counts for more than fewer bytes.
	fastCompressionBytes = 1 << 20
)

// acceptsGzip reports whether a request's Accept-Encoding allows gzip.
func acceptsGzip(header string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, parameters, _ := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		quality, found := strings.CutPrefix(strings.TrimSpace(parameters), "q=")
		q, err := strconv.ParseFloat(quality, 64)
		return !found || err == nil && q > 0
	}
	return false
}

// needsCompression reports whether an answer is still to be compressed for a client.
func (r *renderedAnswer) needsCompression(accepted bool) bool {
	return accepted && r.gzipped == nil && len(r.body) >= minCompressedBytes
}

// compress adds the compressed body. It is remembered with the answer, so that each is
// compressed once, by one of the few that render.
func (r *renderedAnswer) compress() {
	level := gzip.DefaultCompression
	if len(r.body) >= fastCompressionBytes {
		level = gzip.BestSpeed
	}
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, level) // the level is a valid one
	_, _ = w.Write(r.body)                   // a Buffer takes everything
	_ = w.Close()
	r.gzipped = out.Bytes()
}
