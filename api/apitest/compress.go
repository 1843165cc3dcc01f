package apitest

import (
	"bytes"
	"compress/gzip"
	"io"
)

// CompressPadded returns a text, some mebibytes of one byte, and an end, compressed. The
// result is a thousandth of that.
func CompressPadded(text string, padding byte, mebibytes int, end string) []byte {
	var all bytes.Buffer
	w := gzip.NewWriter(&all) // writes to a buffer do not fail
	_, _ = io.WriteString(w, text)
	mebibyte := bytes.Repeat([]byte{padding}, 1<<20)
	for range mebibytes {
		_, _ = w.Write(mebibyte)
	}
	_, _ = io.WriteString(w, end)
	_ = w.Close()
	return all.Bytes()
}
