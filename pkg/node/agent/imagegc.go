package agent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/node/images"
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
		a.event(corev1.EventTypeWarning, "FreeDiskSpaceFailed",
			fmt.Sprintf("The image file system is full: %d bytes must be freed, unused images had %d", need, freed))
	}
}
