package remote

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/genproto/googleapis/bytestream"
)

// Download returns a blob of at most limit bytes. It returns an error if the data does not have the digest.
func (c *Client) Download(ctx context.Context, d Digest, limit int64) ([]byte, error) {
	if d.Size > limit {
		return nil, fmt.Errorf("the blob %s is larger than %d bytes", d, limit)
	}
	if d.Size == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := "blobs/" + d.String()
	if c.instance != "" {
		name = c.instance + "/" + name
	}
	r, err := c.bytes.Read(ctx, &bytestream.ReadRequest{ResourceName: name})
	if err != nil {
		return nil, err
	}
	var data []byte
	for {
		part, err := r.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if int64(len(data)+len(part.GetData())) > d.Size {
			return nil, fmt.Errorf("the server sent more than the blob %s", d)
		}
		data = append(data, part.GetData()...)
	}
	if got := NewBlob(data).Digest; got != d {
		return nil, fmt.Errorf("the server sent %s as the blob %s", got, d)
	}
	return data, nil
}
