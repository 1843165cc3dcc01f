package web

import (
	"bytes"
	"compress/gzip"
)

const (
	// minCompressedBytes is what an answer must have to be worth compressing.
	minCompressedBytes = 1024
	// fastCompressionBytes is from where on less CPU counts for more than fewer bytes.
	fastCompressionBytes = 1 << 20
)

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
