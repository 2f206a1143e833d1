package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	summariesAtOnce = 32
	summariesWait   = 5 * time.Second // for all nodes
	maxSummary      = 16 << 20        // bytes
)

// diskUsage is the usage of a node's file system, in bytes. The images are on it too, unless containerd is another
// program's.
type diskUsage struct {
	Used     int64 `json:"usedBytes"`
	Capacity int64 `json:"capacityBytes"`
	Images   int64 `json:"imagesBytes"`
}

// measureDisks reads each online node's summary through the API server. A node that does not answer in time, or whose
// summary the user may not read (nodes/proxy), stays without figures.
func measureDisks(ctx context.Context, c *rest.Config, rows []*nodeRow) error {
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, summariesWait)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(summariesAtOnce)
	for _, r := range rows {
		if strings.HasPrefix(r.Status, offline) {
			continue
		}
		g.Go(func() error {
			r.Disk, _ = readDisk(ctx, client, base.JoinPath("api/v1/nodes", r.Name, "proxy/stats/summary"))
			return nil
		})
	}
	return g.Wait()
}

func readDisk(ctx context.Context, client *http.Client, at *url.URL) (*diskUsage, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", resp.Status)
	}
	data, err := bounded.All(resp.Body, maxSummary)
	if err != nil {
		return nil, err
	}
	type fileSystem struct{ UsedBytes, CapacityBytes *int64 }
	var summary struct {
		Node struct {
			Fs      *fileSystem
			Runtime struct{ ImageFs *fileSystem }
		}
	}
	if err := json.Unmarshal(data, &summary); err != nil {
		return nil, err
	}
	fs, images := summary.Node.Fs, summary.Node.Runtime.ImageFs
	if fs == nil || fs.UsedBytes == nil || fs.CapacityBytes == nil {
		return nil, fmt.Errorf("%s has no figures", at)
	}
	d := &diskUsage{Used: *fs.UsedBytes, Capacity: *fs.CapacityBytes}
	if images != nil && images.UsedBytes != nil {
		d.Images = *images.UsedBytes
	}
	return d, nil
}
