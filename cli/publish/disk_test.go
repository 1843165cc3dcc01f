package publish

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// newQCOW2 returns a header as qemu-img writes it, with some data.
func newQCOW2(version uint32, size uint64, change func([]byte)) []byte {
	header := make([]byte, 512)
	copy(header, qcow2Magic)
	binary.BigEndian.PutUint32(header[4:], version)
	binary.BigEndian.PutUint32(header[20:], 16)
	binary.BigEndian.PutUint64(header[24:], size)
	if change != nil {
		change(header)
	}
	return header
}

// newFormat returns a file with a magic number, and zeros.
func newFormat(offset int, magic string) []byte {
	content := make([]byte, offset+512)
	copy(content[offset:], magic)
	return content
}

func TestReadDisk(t *testing.T) {
	for name, tt := range map[string]struct {
		content     []byte
		wantFormat  string
		wantVirtual int64
		wantSize    string
		wantError   string
	}{
		"qcow2 version 3":      {newQCOW2(3, 24<<30, nil), "qcow2", 24 << 30, "24576Mi", ""},
		"qcow2 version 2":      {newQCOW2(2, 1<<30, nil), "qcow2", 1 << 30, "1024Mi", ""},
		"no whole MiB":         {newQCOW2(3, 1<<30+512, nil), "qcow2", 1<<30 + 512, "1025Mi", ""},
		"raw":                  {bytes.Repeat([]byte{1}, 3<<20), "raw", 3 << 20, "3Mi", ""},
		"a tiny raw disk":      {[]byte("x"), "raw", 1, "1Mi", ""},
		"empty":                {nil, "", 0, "", "is empty"},
		"a backing file":       {newQCOW2(3, 1<<30, func(h []byte) { h[15] = 1 }), "", 0, "", "flatten it with qemu-img convert"},
		"encrypted":            {newQCOW2(3, 1<<30, func(h []byte) { h[35] = 2 }), "", 0, "", "is encrypted"},
		"external data":        {newQCOW2(3, 1<<30, func(h []byte) { h[79] = 4 }), "", 0, "", "its data in another file"},
		"unknown version":      {newQCOW2(9, 1<<30, nil), "", 0, "", "qcow2 of version 9"},
		"no size":              {newQCOW2(3, 0, nil), "", 0, "", "has 0 bytes"},
		"a size out of bounds": {newQCOW2(3, 1<<63, nil), "", 0, "", "1 to 64 TiB"},
		"cut off":              {newQCOW2(3, 1<<30, nil)[:40], "", 0, "", "cut off"},
		"cut off, version 3":   {newQCOW2(3, 1<<30, nil)[:80], "", 0, "", "cut off"},
		"gzip":                 {[]byte{0x1f, 0x8b, 8}, "", 0, "", "is compressed"},
		"xz":                   {newFormat(0, "\xfd7zXZ\x00"), "", 0, "", "is compressed: its virtual size is unknown; give --size, and --checksum"},
		"zst":                  {newFormat(0, "\x28\xb5\x2f\xfd"), "", 0, "", "is compressed: its virtual size is unknown; give --size, and --checksum"},
		"vmdk":                 {newFormat(0, "KDMV"), "", 0, "", "is vmdk: its virtual size is unknown; give --size, and --checksum"},
		"vdi":                  {newFormat(0x40, "\x7f\x10\xda\xbe"), "", 0, "", "is vdi: its virtual size is unknown"},
		"vhd":                  {newFormat(0, "conectix"), "", 0, "", "is vhd: its virtual size is unknown"},
		"vhd of fixed size":    {newFormat(2<<20, "conectix"), "raw", 2<<20 + 512, "3Mi", ""},
		"vhdx":                 {newFormat(0, "vhdxfile"), "", 0, "", "is vhdx: its virtual size is unknown"},
		"tar":                  {newFormat(0x101, "ustar"), "", 0, "", "is a tar archive, as an OVA is"},
		"magic elsewhere":      {newFormat(0x41, "\x7f\x10\xda\xbe"), "raw", 0x41 + 512, "1Mi", ""},
		"ends in the magic":    {append(make([]byte, 0x101), "usta"...), "raw", 0x105, "1Mi", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk")
			require.NoError(t, os.WriteFile(path, tt.content, 0o600))
			d, err := ReadDisk(t.Context(), path)
			if tt.wantError != "" {
				require.ErrorContains(t, err, tt.wantError)
				require.ErrorContains(t, err, path)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.wantFormat, d.Format)
			assert.Equal(t, tt.wantVirtual, d.VirtualBytes)
			assert.EqualValues(t, len(tt.content), d.FileBytes)
			assert.Equal(t, tt.wantSize, d.DiskSize())
		})
	}
	_, err := ReadDisk(t.Context(), t.TempDir())
	require.ErrorContains(t, err, "no regular file")
	_, err = ReadDisk(t.Context(), "/nowhere/disk")
	require.ErrorContains(t, err, "--file")
}

func TestChecksumIsOfTheWholeFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("a"), 1000), 0o600))
	d, err := ReadDisk(t.Context(), path)
	require.NoError(t, err)
	assert.Equal(t, "sha256:41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3", d.Checksum)
}

func TestHostileDisks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := append([]byte{}, qcow2Magic...)
		content = append(content, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "rest")...)
		if d, err := readDisk(bytes.NewReader(content)); err == nil {
			assert.Positive(t, d.VirtualBytes)
			assert.LessOrEqual(t, d.VirtualBytes, int64(maxVirtualBytes))
		}
	})
}

func TestReadDiskIsInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(path, []byte("raw"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ReadDisk(ctx, path)
	require.ErrorIs(t, err, context.Canceled)
}
