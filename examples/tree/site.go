package main

import "strconv"

// site is a made-up site of so many pages, in place of what a program would really read: page n links to seven pages of its own, and to three of the page
// before it. So 30% of all links lead to what another page links to as well, and both are often read at the same time.
type site int

const own, shared = 7, 3

func (site) root() string { return "/0" }

// read returns the size of a page, and the paths of the pages that it links to.
func (s site) read(path string) (bytes int64, links []string) {
	n, err := strconv.Atoi(path[1:])
	if err != nil {
		panic("no page of this site: " + path)
	}
	for _, page := range []struct{ n, links int }{{n, own}, {n - 1, shared}} {
		for child := page.n*own + 1; page.n >= 0 && child <= page.n*own+page.links && child < int(s); child++ {
			links = append(links, "/"+strconv.Itoa(child))
		}
	}
	return int64(1000 + n%1000), links
}
