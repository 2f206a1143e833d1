package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

const queueUsage = "usage: coracle queue WORKER list|show ID|purge|redrive [ID]"

var queueVerbs = []string{"list", "show", "purge", "redrive"}

func (k commands) queue() *cobra.Command {
	var o QueueOptions
	cmd := &cobra.Command{
		Use:   "queue WORKER list|show ID|purge|redrive [ID]",
		Short: "List, show, purge or redrive the messages of a worker",
		Example: `  coracle queue orders list --state dead
  coracle queue orders redrive`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 && !slices.Contains(queueVerbs, args[1]) && slices.Contains(queueVerbs, args[0]) {
				return fmt.Errorf("the worker comes first: coracle queue %s %s", args[1], args[0])
			}
			if len(args) > 1 && !slices.Contains(queueVerbs, args[1]) {
				return fmt.Errorf("%q is not list, show, purge or redrive: %s", args[1], queueUsage)
			}
			most := map[string]int{"list": 2, "show": 3, "purge": 2, "redrive": 3}
			if len(args) < 2 || len(args) > most[args[1]] || args[1] == "show" && len(args) < 3 {
				return errors.New(queueUsage)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&o.State, "state", "",
		"list: waiting, delayed, blocked, 'in flight' or dead; purge: dead, or all without it")
	cmd.Flags().StringVarP(&o.Output, "output", "o", "", "json or yaml instead of a table")
	k.OnCluster(cmd, func(ctx context.Context, c *command.Cluster, args []string) error {
		names, err := k.Names(args[:1], "worker")
		if err != nil {
			return err
		}
		o.Worker, o.Verb = names[0], args[1]
		if len(args) == 3 {
			o.ID = args[2]
		}
		return cluster{c}.Queue(ctx, o, os.Stdout)
	})
	k.Complete(cmd, 1, func() ctrl.ObjectList { return &workers.WorkerList{} })
	names := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 1 {
			return queueVerbs, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args, start)
	}
	return cmd
}

// QueueOptions are the options of `coracle queue`.
type QueueOptions struct{ Worker, Verb, ID, State, Output string }

// Queue lists, shows, removes or redrives the messages in a worker's queue.
func (c cluster) Queue(ctx context.Context, o QueueOptions, out io.Writer) error {
	switch o.Verb {
	case "list":
		return c.listQueue(ctx, o, out)
	case "show":
		var m workers.QueuedMessage
		if err := c.queueDo(ctx, http.MethodGet, o, nil, &m); err != nil {
			return err
		}
		if o.Output != "" {
			return command.PrintAs(out, o.Output, &m)
		}
		return printMessage(out, &m)
	}
	method, done := http.MethodDelete, "removed from"
	if o.Verb == "redrive" {
		method, done = http.MethodPost, "delivered again in"
	}
	var change workers.QueueChange
	if err := c.queueDo(ctx, method, o, nil, &change); err != nil {
		return err
	}
	if o.Output != "" {
		return command.PrintAs(out, o.Output, &change)
	}
	if change.Messages == 0 && o.Verb == "redrive" {
		return c.noneDead(ctx, o.Worker, out)
	}
	_, err := fmt.Fprintf(out, "%s %s the queue of worker %s\n", count.Of(change.Messages, "message"), done, o.Worker)
	return err
}

// noneDead says where the messages are that a redrive did not find.
func (c cluster) noneDead(ctx context.Context, name string, out io.Writer) error {
	where := name
	var w workers.Worker
	err := c.Client.Get(ctx, ctrl.ObjectKey{Namespace: c.Namespace, Name: name}, &w)
	if to := w.Spec.Delivery.DeadLetter; err == nil && to != "" {
		where = to
		name += ", whose failed messages go to worker " + where
	}
	_, err = fmt.Fprintf(out, "no dead messages in the queue of worker %s: `coracle queue %s list -n %s` lists what is "+
		"there\n", name, where, c.Namespace)
	return err
}

func (c cluster) listQueue(ctx context.Context, o QueueOptions, out io.Writer) error {
	all := workers.QueuedMessages{Items: []workers.QueuedMessage{}}
	for next := ""; ; {
		var page workers.QueuedMessages
		if err := c.queueDo(ctx, http.MethodGet, o, url.Values{"continue": {next}}, &page); err != nil {
			return err
		}
		all.Items = append(all.Items, page.Items...)
		if next = page.Continue; next == "" {
			break
		}
	}
	if o.Output != "" {
		return command.PrintAs(out, o.Output, &all)
	}
	if len(all.Items) == 0 {
		_, err := fmt.Fprintf(out, "no messages in the queue of worker %s\n", o.Worker)
		return err
	}
	now := time.Now()
	return command.Table(out, "ID\tSTATE\tAGE\tATTEMPTS\tSIZE?\tPOD\tERROR", func(line func(cells ...any)) {
		for i := range all.Items {
			m := &all.Items[i]
			line(m.ID, m.State, command.Ago(&m.Arrived, now), m.Attempts, m.Size, m.Pod, why(m))
		}
	})
}

// why returns why a message is in a dead-letter worker's queue, and why its last attempt failed.
func why(m *workers.QueuedMessage) string {
	const longest = 80 // bytes of each
	last := bounded.Text(printable(m.Error), longest)
	if m.DeadLetter == "" {
		return last
	}
	return strings.TrimSuffix("dead letter: "+bounded.Text(printable(m.DeadLetter), longest)+"; here: "+last, "; here: ")
}

func printMessage(out io.Writer, m *workers.QueuedMessage) error {
	lines := []string{
		"ID:           " + m.ID, "State:        " + m.State, fmt.Sprintf("Attempts:     %d", m.Attempts),
		"Arrived:      " + command.Stamp(&m.Arrived),
		"Expires:      " + cmp.Or(command.Stamp(m.Expires), "never: kept until it is redriven or purged"),
		"Content type: " + printable(m.ContentType),
	}
	for _, l := range []struct{ name, text string }{
		{"Sender's ID:  ", m.DedupID}, {"Key:          ", m.Key}, {"Pod:          ", m.Pod}, {"Error:        ", m.Error},
		{"Dead letter:  ", m.DeadLetter},
	} {
		if l.text != "" {
			lines = append(lines, l.name+printable(l.text))
		}
	}
	_, err := fmt.Fprintf(out, "%s\n\n%s\n", strings.Join(lines, "\n"), m.Payload)
	return err
}

// printable replaces control characters: a program chose the text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// maxQueueAnswer bounds a response: a page of messages without payloads, or one message.
const maxQueueAnswer = 4 << 20

func (c cluster) queueDo(ctx context.Context, method string, o QueueOptions, q url.Values, into any) error {
	base, _, err := rest.DefaultServerUrlFor(c.REST)
	if err != nil {
		return err
	}
	path := []string{"/apis", workers.GroupVersion.String(), "namespaces", c.Namespace, "workers", o.Worker, "queue"}
	if o.ID != "" {
		path = append(path, url.PathEscape(o.ID))
	}
	u := base.JoinPath(path...)
	if q == nil {
		q = url.Values{}
	}
	if o.State != "" {
		q.Set("state", o.State)
	}
	u.RawQuery = q.Encode()
	client, err := rest.HTTPClientFor(c.REST)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := bounded.All(res.Body, maxQueueAnswer)
	if err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
		return json.Unmarshal(body, into)
	}
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Message != "" {
		if err := c.absent(ctx, &s); err != nil {
			return err
		}
		return errors.New(s.Message)
	}
	return fmt.Errorf("%s: %.1024s", res.Status, body)
}
