package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// Status prints the state of this machine's process and the health of its components. format is "", "wide" or
// "json". It returns socket.ErrNotRunning if no process runs, and an *UnhealthyError if a component is unhealthy.
func Status(ctx context.Context, runDir, dataDir, format string, out io.Writer) error {
	s, err := socket.NewClient(runDir).Health(ctx)
	down := errors.Is(err, socket.ErrNotRunning)
	if err != nil && !down {
		return err
	}
	if down {
		s = socket.Status{DataDir: dataDir, RunDir: runDir, Components: []socket.Component{}, Processes: []socket.Process{}}
	}
	switch format {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		if jerr := encoder.Encode(s); jerr != nil {
			return jerr
		}
	case "", "wide":
		if !down {
			printStatus(s, format == "wide", out, command.Width(out))
		}
	default:
		return fmt.Errorf("output %q is not known: leave it out, or use wide or json", format)
	}
	if err == nil && socket.Worst(s.Health) == socket.Unhealthy {
		return &UnhealthyError{Health: s.Health}
	}
	return err
}

// UnhealthyError lists the unhealthy components.
type UnhealthyError struct{ Health []socket.Health }

func (e *UnhealthyError) Error() string {
	var names []string
	for _, h := range e.Health {
		if h.State == socket.Unhealthy {
			names = append(names, h.Component)
		}
	}
	return "unhealthy: " + strings.Join(names, ", ")
}

const toJoin = "To join"

// printStatus prints the status, wrapped at width unless that is 0. It lists all components if wide is set, else those
// that are not ready.
func printStatus(s socket.Status, wide bool, out io.Writer, width int) {
	var total int64
	for _, p := range s.Processes {
		total += p.PSS
	}
	disk := ""
	if s.DiskSize > 0 {
		disk = socket.Bytes(s.DiskFree) + " of " + socket.Bytes(s.DiskSize) + " are free"
	}
	rows := [][2]string{
		{
			"Running",
			fmt.Sprintf("pid %d, for %s, %s in %s", s.PID, time.Since(*s.StartedAt).Round(time.Second), socket.Bytes(total),
				count.Of(len(s.Processes), "process")),
		},
		{"Server", s.Server},
		{"Node", strings.TrimSpace(s.Node + " " + s.NodeIP)},
		{"Kubeconfig", s.Kubeconfig},
		{"Data", s.DataDir},
		{"Disk", disk},
		{toJoin, s.Join},
	}
	for _, pressure := range s.Pressure {
		rows = append(rows, [2]string{"Pressure", pressure})
	}
	for _, warning := range s.Warnings {
		rows = append(rows, [2]string{"Warning", warning})
	}
	for _, row := range rows {
		if row[1] == "" {
			continue
		}
		room := width
		if row[0] == toJoin {
			room = 0 // a command line with a line feed in it cannot be copied
		}
		fmt.Fprint(out, command.Hang(fmt.Sprintf("%-10s  ", row[0]), row[1], room))
	}
	fmt.Fprintln(out)
	printHealth(s.Health, out, width)
	components := slices.Clone(s.Components)
	if !wide {
		components = slices.DeleteFunc(components, func(c socket.Component) bool { return c.Ready })
	}
	if len(components) == 0 {
		return
	}
	fmt.Fprintln(out)
	_ = command.Table(out, "COMPONENT\tREADY\tSTARTED IN", func(line func(...any)) {
		for _, c := range components {
			ready := "yes"
			if !c.Ready {
				ready = "no " + c.Problem
			}
			line(c.Name, ready, c.Took.Round(100*time.Microsecond))
		}
	})
}

func printHealth(all []socket.Health, out io.Writer, width int) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(out, "%-14s%-12s%s\n", "PART", "HEALTH", "DETAILS")
	for _, h := range all {
		fmt.Fprint(out, command.Hang(fmt.Sprintf("%-14s%-12s", h.Component, h.State), h.Summary, width))
		for _, d := range h.Details {
			fmt.Fprint(out, command.Hang(fmt.Sprintf("%-26s- ", ""), d, width))
		}
	}
}

// LoadImages loads image archives, files or "-" for in, into this machine's node. It tells on hints that other nodes
// do not have them.
func LoadImages(ctx context.Context, runDir string, files []string, in io.Reader, out, hints io.Writer) error {
	for _, file := range files {
		if err := loadImage(ctx, runDir, file, in, out); err != nil {
			return err
		}
	}
	s, err := socket.NewClient(runDir).Status(ctx)
	if err != nil {
		return err
	}
	if n := len(s.OtherNodes); n > 0 {
		names := strings.Join(s.OtherNodes[:min(n, 5)], ", ")
		if n > 5 {
			names += fmt.Sprintf(" and %d more", n-5)
		}
		fmt.Fprintf(hints, "Only node %s has loaded them. If pods on %s need them too, run this command on each of these "+
			"machines, or push the images to a registry.\n", s.Node, names)
	}
	return nil
}

func loadImage(ctx context.Context, runDir, file string, in io.Reader, out io.Writer) error {
	if file != "-" {
		f, err := os.Open(file)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("there is no file %s: load takes archives of images, such as `docker save -o FILE IMAGE` writes",
				file)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	last, err := socket.NewClient(runDir).Load(ctx, in)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, image := range last.Images {
		for _, name := range image.Names {
			fmt.Fprintf(out, "loaded %s\n", name)
		}
	}
	return nil
}

// Images lists the images of this machine's node.
func Images(ctx context.Context, runDir string, out io.Writer) error {
	last, err := socket.NewClient(runDir).Images(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(last.Images, func(a, b runtime.Image) int { return strings.Compare(firstName(a), firstName(b)) })
	return command.Table(out, "IMAGE\tID\tSIZE", func(line func(...any)) {
		for _, image := range last.Images {
			id := strings.TrimPrefix(image.ID, "sha256:")
			line(firstName(image), id[:min(12, len(id))], socket.Bytes(image.Size))
			for _, name := range image.Names[min(1, len(image.Names)):] {
				line(name, id[:min(12, len(id))], socket.Bytes(image.Size))
			}
		}
	})
}

func firstName(i runtime.Image) string {
	if len(i.Names) > 0 {
		return i.Names[0]
	}
	return "<none>"
}

// PullImage pulls ref into this machine's node and shows the progress.
func PullImage(ctx context.Context, runDir, ref string, out, progress io.Writer) error {
	last, err := socket.NewClient(runDir).Pull(ctx, ref, func(e socket.Event) {
		if e.Total > 0 {
			fmt.Fprintf(progress, "\r%s of %s", socket.Bytes(e.Bytes), socket.Bytes(e.Total))
		}
	})
	fmt.Fprint(progress, command.ClearLine)
	if err != nil {
		return err
	}
	for _, image := range last.Images {
		fmt.Fprintf(out, "pulled %s, %s\n", firstName(image), socket.Bytes(image.Size))
	}
	return nil
}

// RemoveImages removes images from this machine's node by name or ID.
func RemoveImages(ctx context.Context, runDir string, refs []string, out io.Writer) error {
	for _, ref := range refs {
		if err := socket.NewClient(runDir).Remove(ctx, ref); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		fmt.Fprintf(out, "removed %s\n", ref)
	}
	return nil
}
