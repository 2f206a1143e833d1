package auditlog

import (
	"context"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/pkg/api/webhook"
)

// Webhook is a server that receives audit events.
type Webhook struct {
	// Kubeconfig is the path of the kubeconfig for the server. Empty disables the webhook.
	Kubeconfig string
	// InitialBackoff is the pause before a failed batch is sent again. It grows by half with each of five attempts.
	InitialBackoff time.Duration
	// BufferSize limits the number of waiting events, in addition to their bytes. MaxBatch limits the events of a
	// batch, which waits at most MaxWait to fill up.
	BufferSize, MaxBatch int
	MaxWait              time.Duration
}

// attempts is the number of times a batch is sent before its events are dropped.
const attempts = 5

// hook sends events to a webhook, one batch at a time.
type hook struct {
	*buffer
	cfg    Webhook
	client *rest.RESTClient
}

func newHook(cfg Config) (*hook, error) {
	config, err := webhookutil.LoadKubeconfig(cfg.Webhook.Kubeconfig, nil)
	if err != nil {
		return nil, err
	}
	w, err := webhookutil.NewGenericWebhook(audit.Scheme, audit.Codecs, webhook.Bound(config, webhook.MaxResponse),
		[]schema.GroupVersion{auditv1.SchemeGroupVersion}, wait.Backoff{})
	if err != nil {
		return nil, err
	}
	return &hook{
		buffer: newBuffer("webhook", cfg.Webhook.BufferSize, cfg.Logger),
		cfg:    cfg.Webhook,
		client: w.RestClient,
	}, nil
}

func (h *hook) run(ctx context.Context) error {
	// Requests end lastChance after ctx, so that a request in flight need not be repeated.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastChance, cancel) })()
	defer utilnet.CloseIdleConnectionsFor(h.client.Client.Transport)
	var batch []auditinternal.Event
	for ctx.Err() == nil {
		if batch = h.collect(ctx, batch); len(batch) > 0 && h.send(ctx, requests, batch) {
			batch = h.sent(batch)
		}
	}
	for len(batch) > 0 || len(h.waiting) > 0 {
		for len(batch) < h.cfg.MaxBatch && len(h.waiting) > 0 {
			batch = append(batch, *<-h.waiting)
		}
		if err := h.post(requests, batch); err != nil {
			why := err.Error()
			if requests.Err() != nil {
				why = stopped
			}
			h.drop(len(batch)+len(h.waiting), why)
			return nil
		}
		batch = h.sent(batch)
	}
	return nil
}

// collect adds events to batch until it is full, MaxWait after the first added one, or until ctx is done.
func (h *hook) collect(ctx context.Context, batch []auditinternal.Event) []auditinternal.Event {
	var late <-chan time.Time
	for len(batch) < h.cfg.MaxBatch {
		select {
		case e := <-h.waiting:
			batch = append(batch, *e)
			if late == nil {
				timer := time.NewTimer(h.cfg.MaxWait)
				defer timer.Stop()
				late = timer.C
			}
		case <-late:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// send sends a batch, or drops its events after the last attempt. It returns false if ctx is done before: the caller
// still owns the batch.
func (h *hook) send(ctx, requests context.Context, batch []auditinternal.Event) bool {
	pause := h.cfg.InitialBackoff
	for attempt := 1; ; attempt++ {
		err := h.post(requests, batch)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if attempt == attempts {
			h.drop(len(batch), err.Error())
			return true
		}
		h.log.Debug("could not send audit events, retrying", "after", pause, "error", err)
		timer := time.NewTimer(pause + rand.N(pause/5+1)) // jitter, as upstream, for servers that failed together
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
		pause += pause / 2
	}
}

func (h *hook) post(ctx context.Context, batch []auditinternal.Event) error {
	return h.client.Post().Body(&auditinternal.EventList{Items: batch}).Do(ctx).Error()
}

// sent releases the events' bytes and returns an empty batch.
func (h *hook) sent(batch []auditinternal.Event) []auditinternal.Event {
	for i := range batch {
		h.took(&batch[i])
	}
	clear(batch)
	return batch[:0]
}
