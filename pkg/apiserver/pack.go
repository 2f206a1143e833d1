package apiserver

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
)

// packer compresses a response by gzip (RFC 1952). Between Flush and the next Write, as between the events of a watch, it holds no compressor:
// each continues the one stream, of which it knows nothing. (Upstream begins another gzip member after each flush, which curl does not read.)
type packer struct {
	w       io.Writer
	z       *flate.Writer
	started bool
	sum     uint32
	size    uint32 // modulo 2^32, as the format wants it
}

var compressors = sync.Pool{New: func() any { z, _ := flate.NewWriter(io.Discard, flate.BestSpeed); return z }} //nolint:gochecknoglobals // a pool

const (
	gzipHead = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" // no name, no time, unknown system
	gzipLast = "\x03\x00"                                 // an empty block, the last one (RFC 1951, section 3.2.6)
)

func (p *packer) Write(b []byte) (int, error) {
	if err := p.start(); err != nil {
		return 0, err
	}
	if p.z == nil {
		p.z = compressors.Get().(*flate.Writer)
		p.z.Reset(p.w)
	}
	p.sum = crc32.Update(p.sum, crc32.IEEETable, b)
	p.size += uint32(len(b))
	return p.z.Write(b)
}

func (p *packer) start() error {
	if p.started {
		return nil
	}
	p.started = true
	_, err := io.WriteString(p.w, gzipHead)
	return err
}

// Flush writes all there is, up to the end of a byte, and gives the compressor back.
func (p *packer) Flush() error {
	if p.z == nil {
		return nil
	}
	err := p.z.Flush()
	compressors.Put(p.z)
	p.z = nil
	return err
}

// Close ends the stream.
func (p *packer) Close() error {
	if err := p.start(); err != nil {
		return err
	}
	if err := p.Flush(); err != nil {
		return err
	}
	b := binary.LittleEndian.AppendUint32([]byte(gzipLast), p.sum)
	_, err := p.w.Write(binary.LittleEndian.AppendUint32(b, p.size))
	return err
}
