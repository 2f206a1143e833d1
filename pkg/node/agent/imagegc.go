package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/images"
	"github.com/coracle-dev/coracle/pkg/node/pod/eviction"
)

// imagePeriod is the interval of image garbage collection.
const imagePeriod = 5 * time.Minute

// collectImages removes unused images if the image file system is too full.
func (a *Agent) collectImages(ctx context.Context) {
	r := a.eviction.Reading(config.ImageFsAvailable)
	need := images.Excess(r.Available, r.Capacity, a.c.ImageGCHigh, a.c.ImageGCLow)
	if need == 0 {
		return
	}
	freed, err := a.pods.Images().Collect(ctx, a.pods.ImagesInUse(), need)
	if err != nil {
		a.log.Warn("could not remove all unused images", "error", err)
	}
	if freed > 0 {
		a.log.Info("removed unused images", "bytes", freed)
	}
	if freed < need {
		a.reportFull(r, freed, need)
	}
}

// reportFull records upstream's event, with the amounts and thresholds.
func (a *Agent) reportFull(r eviction.Reading, freed, need int64) {
	gib := func(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }
	a.event(corev1.EventTypeWarning, "FreeDiskSpaceFailed",
		fmt.Sprintf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). "+
			"Failed to free sufficient space by deleting unused images (freed %s). "+
			"%s are free; beyond image-gc-high-threshold=%d%%, %s more are wanted, down to image-gc-low-threshold=%d%%. "+
			"Images in use or younger than %s, logs, volumes and other files stay. Pods are evicted by eviction-hard only.",
			100-int(float64(r.Available)*100/float64(r.Capacity)), gib(r.Capacity), gib(freed), gib(r.Available),
			a.c.ImageGCHigh, gib(need-freed), a.c.ImageGCLow, images.KeepTime))
}
