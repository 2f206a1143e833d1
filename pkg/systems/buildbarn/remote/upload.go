package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"

	remoteexecution "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/genproto/googleapis/bytestream"
	"google.golang.org/grpc/status"
)

// Missing returns the digests whose blobs the storage lacks.
func (c *Client) Missing(ctx context.Context, digests []Digest) ([]Digest, error) {
	var missing []Digest
	for some := range slices.Chunk(digests, maxDigests) {
		request := &remoteexecution.FindMissingBlobsRequest{
			InstanceName: c.instance, DigestFunction: remoteexecution.DigestFunction_SHA256,
		}
		for _, d := range some {
			request.BlobDigests = append(request.BlobDigests, d.proto())
		}
		response, err := c.storage.FindMissingBlobs(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, m := range response.GetMissingBlobDigests() {
			d, err := digestOf(m)
			if err != nil {
				return nil, err
			}
			if !slices.Contains(some, d) {
				return nil, fmt.Errorf("the server reports as missing a blob that was not in the request: %s", d)
			}
			missing = append(missing, d)
		}
	}
	return missing, nil
}

// Upload stores the blobs that the storage lacks, and returns their digests. It may be repeated.
func (c *Client) Upload(ctx context.Context, blobs []Blob) ([]Digest, error) {
	data := make(map[Digest][]byte, len(blobs))
	digests := make([]Digest, 0, len(blobs))
	for _, b := range blobs {
		if _, have := data[b.Digest]; !have {
			data[b.Digest] = b.Data
			digests = append(digests, b.Digest)
		}
	}
	missing, err := c.Missing(ctx, digests)
	if err != nil {
		return nil, fmt.Errorf("asking for missing blobs: %w", err)
	}
	var batch []Blob
	var size int64
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		defer func() { batch, size = nil, 0 }()
		return c.store(ctx, batch)
	}
	for _, d := range missing {
		if d.Size > c.batch {
			if err := c.stream(ctx, Blob{d, data[d]}); err != nil {
				return nil, fmt.Errorf("writing %s: %w", d, err)
			}
			continue
		}
		if size+d.Size > c.batch || len(batch) == maxDigests {
			if err := flush(); err != nil {
				return nil, err
			}
		}
		batch, size = append(batch, Blob{d, data[d]}), size+d.Size
	}
	return missing, flush()
}

func (c *Client) store(ctx context.Context, blobs []Blob) error {
	request := &remoteexecution.BatchUpdateBlobsRequest{
		InstanceName: c.instance, DigestFunction: remoteexecution.DigestFunction_SHA256,
	}
	for _, b := range blobs {
		request.Requests = append(request.Requests, &remoteexecution.BatchUpdateBlobsRequest_Request{
			Digest: b.Digest.proto(), Data: b.Data,
		})
	}
	response, err := c.storage.BatchUpdateBlobs(ctx, request)
	if err != nil {
		return fmt.Errorf("storing %d blobs: %w", len(blobs), err)
	}
	for _, r := range response.GetResponses() {
		if err := status.FromProto(r.GetStatus()).Err(); err != nil {
			return fmt.Errorf("storing %.80s: %w", r.GetDigest().GetHash(), err)
		}
	}
	return nil
}

func (c *Client) stream(ctx context.Context, b Blob) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.bytes.Write(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("uploads/%s/blobs/%s", uuid(), b.Digest)
	if c.instance != "" {
		name = c.instance + "/" + name
	}
	for offset := 0; ; {
		piece := b.Data[offset:min(offset+chunk, len(b.Data))]
		last := offset+len(piece) == len(b.Data)
		err := w.Send(&bytestream.WriteRequest{
			ResourceName: name,
			WriteOffset:  int64(offset),
			FinishWrite:  last,
			Data:         piece,
		})
		if errors.Is(err, io.EOF) {
			break // the server has the blob already, or its response has the reason
		}
		if err != nil {
			return err
		}
		name = "" // only the first message needs the name
		if offset += len(piece); last {
			break
		}
	}
	response, err := w.CloseAndRecv()
	if err != nil {
		return err
	}
	if got := response.GetCommittedSize(); got != b.Digest.Size {
		return fmt.Errorf("the server stored only %d of %d bytes", got, b.Digest.Size)
	}
	return nil
}

// uuid returns a random UUID, which distinguishes uploads of the same blob.
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
