package workers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const batchPods = 32

// messageBatch holds the messages of one request, one per line of its body.
type messageBatch struct {
	sender
	wait bool
	head http.Header
	msgs []workers.BatchMessage
	out  []workers.BatchResult
	// again[i] means that msgs[i] may be sent to another pod.
	again []bool
}

// sendBatch sends each non-empty line of the body as a message, and responds with one line each, in the same order.
func (s sender) sendBatch(ctx context.Context, w http.ResponseWriter, head http.Header, body []byte, wait bool) error {
	b := &messageBatch{sender: s, wait: wait, head: head}
	for line := range bytes.SplitSeq(body, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		if len(b.msgs) == workers.MaxBatch {
			return apierrors.NewRequestEntityTooLargeError("a batch has at most " + strconv.Itoa(workers.MaxBatch) + " messages")
		}
		b.msgs = append(b.msgs, workers.BatchMessage{ID: uuid.NewString(), Payload: line})
	}
	if len(b.msgs) == 0 {
		return apierrors.NewBadRequest("the batch has no messages: each line of the body is one")
	}
	pods := s.candidates()
	if len(pods) == 0 {
		var err error
		if pods, err = s.wake(ctx); err != nil {
			return err
		}
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	b.send(ctx, pods)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	for i := range b.out {
		if err := lines.Encode(&b.out[i]); err != nil {
			return nil //nolint:nilerr // the sender is gone
		}
	}
	return nil
}

// send distributes the messages over the pods. Refused messages go to other pods, in at most mostReceivers rounds.
func (b *messageBatch) send(ctx context.Context, pods []*corev1.Pod) {
	b.out, b.again = make([]workers.BatchResult, len(b.msgs)), make([]bool, len(b.msgs))
	rest := make([]int, len(b.msgs))
	for i := range rest {
		rest[i] = i
		b.out[i].ID = b.msgs[i].ID
	}
	for round := 0; round < mostReceivers && len(rest) > 0 && len(pods) > 0; round++ {
		now := pods[:min(len(pods), batchPods)]
		of := make([][]int, len(now))
		first := rand.IntN(len(now))
		for n, i := range rest {
			to := (first + n) % len(now)
			of[to] = append(of[to], i)
		}
		var wg sync.WaitGroup
		for to, list := range of {
			if len(list) > 0 {
				wg.Go(func() { b.post(ctx, now[to], list) })
			}
		}
		wg.Wait()
		rest = slices.DeleteFunc(rest, func(i int) bool { return !b.again[i] })
		full := map[string]bool{}
		for _, i := range rest {
			full[b.out[i].Pod] = true
		}
		pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return full[p.Name] })
	}
}

// post sends the messages with the indexes in list to a pod's node, and records their results.
func (b *messageBatch) post(ctx context.Context, p *corev1.Pod, list []int) {
	outcomes, elsewhere, err := b.exchange(ctx, p, list)
	for n, i := range list {
		r := &b.out[i]
		*r = workers.BatchResult{ID: r.ID, Pod: p.Name}
		b.again[i] = elsewhere
		var status *apierrors.StatusError
		switch {
		case errors.As(err, &status):
			r.Code, r.Reason, r.Message = int(status.ErrStatus.Code), workers.Failure(status.ErrStatus.Reason),
				status.ErrStatus.Message
		case outcomes[n].Failure != "":
			o := &outcomes[n]
			r.Code, r.Reason, r.Message = o.Failure.Code(), o.Failure, "pod "+p.Name+": "+o.Text
			b.again[i] = o.Untouched && (o.Failure == workers.NoReceiver || o.Failure == workers.QueueFull)
		case !b.wait:
			r.Code = http.StatusAccepted
		case utf8.Valid(outcomes[n].Payload):
			r.Code, r.Reply = http.StatusOK, string(outcomes[n].Payload)
		default:
			r.Code, r.Binary = http.StatusOK, outcomes[n].Payload
		}
	}
}

// exchange sends the messages with the indexes in list to a pod's node. Its error is a StatusError. elsewhere reports
// whether the messages may be sent to other pods after the error.
func (b *messageBatch) exchange(ctx context.Context, p *corev1.Pod,
	list []int) (outcomes []workers.BatchOutcome, elsewhere bool, err error) {
	msgs := make([]workers.BatchMessage, len(list))
	for n, i := range list {
		msgs[n] = b.msgs[i]
		if !b.wait {
			msgs[n].Receipt = b.receipt(p, b.head.Get("Content-Type"), msgs[n].Payload)
		}
	}
	body, err := json.Marshal(msgs)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	head := b.head.Clone()
	head.Del(workers.HeaderID)
	if deadline, ok := ctx.Deadline(); ok && b.wait {
		head.Set(workers.HeaderWait, "true")
		head.Set(workers.HeaderTimeout, time.Until(deadline).String())
	}
	if !b.wait {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, acceptTime)
		defer cancel()
	}
	res, elsewhere, err := b.toNode(ctx, p, "messageBatches", head, body)
	if err != nil {
		return nil, elsewhere, err
	}
	defer res.Body.Close()
	text, err := bounded.All(res.Body, workers.MaxBatchOutcomes)
	if f := workers.Failure(res.Header.Get(workers.HeaderFailure)); err == nil && f != "" {
		return nil, true, failed(f, res.StatusCode, "pod "+p.Name+": "+string(text[:min(len(text), 1024)]))
	}
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.1024s", res.Status, text)
	}
	if err == nil {
		err = json.Unmarshal(text, &outcomes)
	}
	if err == nil && len(outcomes) != len(list) {
		err = errors.New("the node answered for another number of messages")
	}
	if err != nil {
		return nil, false, failed(workers.ReceiverLost, http.StatusBadGateway,
			"the node of pod "+p.Name+" was lost while it had the messages, which may have been handled: "+err.Error())
	}
	return outcomes, false, nil
}
