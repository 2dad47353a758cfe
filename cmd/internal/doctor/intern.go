package doctor

// interner keeps one copy of each text. The same few statements and names come in every sample, and a window holds
// hundreds of samples.
type interner struct{ texts map[string]string }

// maxTexts bounds the map if statements contain their values: beyond it, the map starts over.
const maxTexts = 10_000

func (i *interner) keep(text *string) {
	if kept, ok := i.texts[*text]; ok {
		*text = kept
		return
	}
	if i.texts == nil || len(i.texts) >= maxTexts {
		i.texts = map[string]string{}
	}
	i.texts[*text] = *text
}

func (i *interner) sample(s *Sample) {
	for n := range s.Sessions {
		session := &s.Sessions[n]
		for _, text := range []*string{&session.Kind, &session.State, &session.WaitType, &session.Wait, &session.Query} {
			i.keep(text)
		}
	}
	for n := range s.Locks {
		lock := &s.Locks[n]
		for _, text := range []*string{&lock.Type, &lock.Mode, &lock.WaitType, &lock.Wait, &lock.State, &lock.Query} {
			i.keep(text)
		}
	}
}
